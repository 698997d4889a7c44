"""How a step is executed: plain torch (one process or DDP) and DeepSpeed ZeRO-1/2/3, behind one interface."""

from encoder import MaskedLanguageModel
from pretrain.engines.base import Engine, EngineConfig, StepRows
from pretrain.engines.plain import PlainEngine
from pretrain.engines.zero import ZeroEngine
from pretrain.optim.adamw import OptimizerConfig
from pretrain.processes import Processes


def build_engine(
    config: EngineConfig,
    model: MaskedLanguageModel,
    optimizer: OptimizerConfig,
    processes: Processes,
    rows: StepRows,
) -> Engine:
    """The engine that the configuration names, around `model` (fp32, on its device)."""
    if config.name == "deepspeed":
        return ZeroEngine(config, model, optimizer, processes, rows)
    return PlainEngine(config, model, optimizer, processes)
