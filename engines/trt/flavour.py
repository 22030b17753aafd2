"""The two Python packages that are TensorRT, behind one door: `tensorrt_rtx` and `tensorrt`."""

from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import dataclass
from typing import Any

from ...runtime.errors import BackendError, InputError
from ..manifest import FlavourName, LoweringName

_ACTIVATIONS = re.compile(r"Total Activation Memory: (\d+) bytes")
_ERRORS_KEPT = 3


@dataclass(frozen=True)
class Flavour:
    """module: its import name. since: the first version whose calls we make. caches_since: the first with layers that
    update a KV cache in place. install: how to get it. cross_builds: whether it builds for GPUs this machine does not
    have."""

    name: FlavourName
    module: str
    since: tuple[int, int]
    caches_since: tuple[int, int]
    install: str
    cross_builds: bool


FLAVOURS: dict[FlavourName, Flavour] = {
    "trt-rtx": Flavour("trt-rtx", "tensorrt_rtx", (1, 4), (1, 4), "pip install 'coolsd-trt[rtx]'", cross_builds=True),
    "trt": Flavour(
        "trt",
        "tensorrt",
        (10, 3),  # JetPack 6
        (10, 15),
        "pip install 'coolsd-trt[trt]' (its libraries come from https://pypi.nvidia.com; on Jetson, with JetPack)",
        cross_builds=False,
    ),
}


def load_module(flavour: Flavour) -> Any:
    """Import the package. No TensorRT object may be made before the driver was probed: without one they crash.

    Raises: BackendError when it is not installed, incomplete or too old.
    """
    if importlib.util.find_spec(flavour.module) is None:
        raise BackendError(f"backend {flavour.name}: {flavour.module} is not installed. Install it: {flavour.install}.")
    try:
        module = importlib.import_module(flavour.module)
    except (ImportError, OSError) as error:
        raise BackendError(
            f"backend {flavour.name}: {flavour.module} can't be loaded ({error}). Install it: {flavour.install}."
        ) from None
    if _version(module) < flavour.since:
        needed = ".".join(map(str, flavour.since))
        raise BackendError(
            f"backend {flavour.name}: {flavour.module} {module.__version__} is installed and too old. "
            f"Expected {needed} or newer: {flavour.install}."
        )
    return module


def lowering_for(flavour: Flavour, module: Any) -> LoweringName:
    """How graphs must write their caches for this TensorRT: in place, or into a copy where it has no layer for that."""
    return "tensor_scatter" if _version(module) >= flavour.caches_since else "portable"


def _version(module: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in module.__version__.split(".")[:2])


def parse_capability(text: str) -> str:
    """ "8.9" -> "8.9". Raises: InputError for anything that is no compute capability."""
    if not re.fullmatch(r"\d{1,2}\.\d", text):
        raise InputError(f"--compute-capability {text!r}: expected a number like 8.9 (RTX 40) or 12.0 (RTX 50).")
    return text


def new_log(trt: Any) -> Any:
    """A TensorRT logger that keeps errors for our messages instead of printing them, and the activation memory of
    every optimisation profile. It must outlive what it is given to."""

    class Log(trt.ILogger):  # type: ignore[misc]  # the base class is only known at run time
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []
            self.activations: list[int] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message.strip())
            elif found := _ACTIVATIONS.search(message):
                self.activations.append(int(found[1]))

        def summary(self) -> str:
            return " / ".join(self.errors[:_ERRORS_KEPT]) or "it logged no reason"

    return Log()
