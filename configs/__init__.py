"""One configuration mechanism: see `configs.loader`."""

from configs.loader import Config, load_config, run_command

__all__ = ["Config", "load_config", "run_command"]
