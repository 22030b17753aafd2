"""Which backends exist, which can run here, and what `auto` picks."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..runtime.errors import BackendError, BundleError
from .cuda import probe_gpu
from .manifest import EngineSet, Manifest
from .trt.flavour import FLAVOURS, load_module
from .trt.plans import find_plans, plans_of

# In the order `auto` tries them.
AUTO = ("trt-rtx", "trt", "ort-cuda", "ort-cpu")
# ort-trt is used only when asked for: it builds its engines when it is opened, which takes minutes.
BACKENDS = ("trt-rtx", "trt", "ort-trt", "ort-cuda", "ort-cpu")
BACKENDS_HELP = f"{', '.join(BACKENDS)}. ort-trt builds its engines when it first opens a bundle."
CUDA_PROVIDER, TENSORRT_PROVIDER = "CUDAExecutionProvider", "TensorrtExecutionProvider"
GPU_PROVIDERS = {"ort-cuda": CUDA_PROVIDER, "ort-trt": TENSORRT_PROVIDER}
# The first onnxruntime with kernels for opset 24.
TENSOR_SCATTER_SINCE = (1, 24)


@dataclass(frozen=True)
class Backend:
    """The backend to use. reason: why it, and why not those before it. trt, engines: the TensorRT module and the plans
    that fit this machine, when it is a TensorRT backend."""

    name: str
    reason: str = "asked for"
    trt: Any = None
    engines: EngineSet | None = None


def choose_backend(name: str, manifest: Manifest) -> Backend:
    """The backend to use for what was asked, "auto" or one of `BACKENDS`. What was asked is never replaced.

    Raises: BackendError for an unknown name, or a backend whose package, driver or GPU is missing; BundleError when
    the bundle has no plans that fit.
    """
    if name == "auto":
        return _first_usable(manifest)
    if name not in BACKENDS:
        raise BackendError(f"backend = {name!r}: no such backend. Expected auto or one of: {', '.join(BACKENDS)}.")
    return _require(name, manifest)


def onnxruntime_has_tensor_scatter() -> bool:
    """Whether the installed onnxruntime runs the tensor_scatter lowering; True when none is installed."""
    for package in ("onnxruntime", "onnxruntime-gpu"):
        with suppress(PackageNotFoundError):
            major, minor = version(package).split(".")[:2]
            return (int(major), int(minor)) >= TENSOR_SCATTER_SINCE
    return True


def _first_usable(manifest: Manifest) -> Backend:
    obstacles: list[str] = []
    for name in AUTO:
        try:
            found = _require(name, manifest)
        except (BackendError, BundleError) as error:
            obstacles.append(str(error))
            continue
        # What stood in the way, without the advice that follows it.
        short = (text.removeprefix("backend ").split(". ")[0].rstrip(".") for text in obstacles)
        return Backend(name, "; ".join(short) or "first choice", found.trt, found.engines)
    raise BackendError("backend auto: none can be used here. " + " ".join(obstacles))


def _require(name: str, manifest: Manifest) -> Backend:
    """Raises what stands in the way."""
    if name.startswith("ort-"):
        require_onnxruntime(name)
        return Backend(name)
    flavour = next(flavour for flavour in FLAVOURS.values() if flavour.name == name)
    plans_of(manifest, flavour.name)
    # The driver first: without one, TensorRT objects crash.
    gpu = _probe(name)
    trt = load_module(flavour)
    return Backend(name, trt=trt, engines=find_plans(manifest, flavour.name, trt.__version__, gpu))


def require_onnxruntime(name: str) -> None:
    """Raises: BackendError when it is not installed or, for a GPU backend, can't reach a GPU."""
    extra = "cpu" if name == "ort-cpu" else "gpu"
    if importlib.util.find_spec("onnxruntime") is None:
        raise BackendError(
            f"backend {name}: onnxruntime is not installed. Install it: pip install 'coolsd-trt[{extra}]'."
        )
    if name == "ort-cpu":
        return
    import onnxruntime

    provider = GPU_PROVIDERS[name]
    if provider not in onnxruntime.get_available_providers():
        raise BackendError(
            f"backend {name}: the installed onnxruntime {onnxruntime.__version__} has no {provider}. Replace it: "
            "pip uninstall onnxruntime, then pip install 'coolsd-trt[gpu]'."
        )
    _probe(name)


def _probe(name: str) -> str:
    try:
        return probe_gpu().compute_capability
    except BackendError as error:
        raise BackendError(f"backend {name}: {error}") from None
