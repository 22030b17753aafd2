"""Which backends exist, which can run here, and what `auto` picks."""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version

from ..runtime.errors import BackendError

BACKENDS = ("ort-cpu",)
# The first onnxruntime with kernels for opset 24.
TENSOR_SCATTER_SINCE = (1, 24)


def choose_backend(name: str) -> str:
    """The backend to use for what was asked, "auto" or one of `BACKENDS`.

    Raises: BackendError for an unknown name or a backend whose package is not installed.
    """
    if name != "auto" and name not in BACKENDS:
        raise BackendError(f"backend = {name!r}: no such backend. Expected auto or one of: {', '.join(BACKENDS)}.")
    if importlib.util.find_spec("onnxruntime") is None:
        raise BackendError("backend ort-cpu: onnxruntime is not installed. Install it: pip install 'coolsd-trt[cpu]'.")
    return "ort-cpu"


def onnxruntime_has_tensor_scatter() -> bool:
    """Whether the installed onnxruntime runs the tensor_scatter lowering; True when none is installed."""
    try:
        major, minor = version("onnxruntime").split(".")[:2]
    except PackageNotFoundError:
        return True
    return (int(major), int(minor)) >= TENSOR_SCATTER_SINCE
