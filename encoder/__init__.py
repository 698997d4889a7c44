"""The encoder: every shape from one implementation, its folder on disk, and both ways to transformers."""

from encoder.attention import attention_kernel, why_not_flash
from encoder.config import EncoderConfig
from encoder.documents import Documents
from encoder.loading import load_model
from encoder.loss import MaskedLoss
from encoder.model import MaskedLanguageModel, check_bounds

__all__ = [
    "Documents",
    "EncoderConfig",
    "MaskedLanguageModel",
    "MaskedLoss",
    "attention_kernel",
    "check_bounds",
    "load_model",
    "why_not_flash",
]
