"""Host side of COOL-SD, NumPy only: warping, schedules, acceptance, the speculative round, and `Pipeline`."""

from .config import SamplingConfig, SpeculativeConfig
from .errors import BackendError, BundleError, Cancelled, CoolsdError, InputError
from .pipeline import Pipeline
from .result import GenerationResult
from .stats import ImageStats, Progress

__all__ = [
    "BackendError",
    "BundleError",
    "Cancelled",
    "CoolsdError",
    "GenerationResult",
    "ImageStats",
    "InputError",
    "Pipeline",
    "Progress",
    "SamplingConfig",
    "SpeculativeConfig",
]
