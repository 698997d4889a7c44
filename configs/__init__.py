"""What every package shares: the configuration mechanism, the user's error, whole-or-absent files, one constant."""

from configs.errors import InputError
from configs.loader import Config, load_config, run_command

# The label of a token that no loss and no score counts: `ignore_index` of torch's cross-entropy.
IGNORED_LABEL = -100

__all__ = ["IGNORED_LABEL", "Config", "InputError", "load_config", "run_command"]
