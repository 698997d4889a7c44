"""The encoder: every shape from one implementation, and its folder on disk."""

from encoder.attention import attention_kernel
from encoder.config import EncoderConfig
from encoder.documents import Documents
from encoder.loss import MaskedLoss
from encoder.model import Encoder, MaskedLanguageModel, check_bounds
from encoder.storage import load_model, save_model

__all__ = [
    "Documents",
    "Encoder",
    "EncoderConfig",
    "MaskedLanguageModel",
    "MaskedLoss",
    "attention_kernel",
    "check_bounds",
    "load_model",
    "save_model",
]
