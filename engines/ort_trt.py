"""onnxruntime's TensorRT provider. It builds engines when a session opens, which takes minutes the first time, and
keeps them in the bundle's folder `engines/ort-trt-<version>/`. What it leaves, and the image decoder, the CUDA provider
runs.
"""

from __future__ import annotations

from pathlib import Path

from ..runtime.errors import BackendError
from .backends import CUDA_PROVIDER, TENSORRT_PROVIDER
from .bundle import Bundle
from .manifest import PLANS_FOLDER, Manifest, Profile, TransformerSpec
from .ort import Placement
from .ort_cuda import ON_CUDA, OrtCudaOpener, OrtCudaTransformer
from .ort_draft import OrtDraft
from .trt.profiles import BRANCHES, TYPICAL_DRAFT, shapes

MAX_BATCH = 8
PRECISIONS = ("fp32", "fp16")


class OrtTrtTransformer(OrtCudaTransformer):
    """Its caches have the graph's full length: TensorRT wants a number for it."""

    def allocate(self, rows: int, cache_length: int) -> None:
        if rows > BRANCHES * MAX_BATCH:
            raise BackendError(
                f"a batch of {-(-rows // BRANCHES)} pictures was asked; backend ort-trt takes {MAX_BATCH}. "
                f"Use --batch-size {MAX_BATCH}."
            )
        super().allocate(rows, self._spec.positions)


class OrtTrtDraft(OrtDraft, OrtTrtTransformer):
    """Its chains run on the CUDA provider, on the caches of its steps: TensorRT has no float64, and writes a cache once
    in a graph."""


class OrtTrtOpener(OrtCudaOpener):
    """Raises: BackendError for a precision it does not run, or a bundle that can't be written to."""

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        precision = bundle.manifest.target.precision
        if precision not in PRECISIONS:
            raise BackendError(
                f"backend ort-trt: the bundle is {precision}, expected {' or '.join(PRECISIONS)}. Use backend trt-rtx "
                f"or trt, or build the bundle again with --precision fp16."
            )
        self._engines = _engine_folder(bundle.path)
        super().__init__(bundle, threads)

    def transformer(self, part: str, spec: TransformerSpec) -> OrtTrtTransformer:
        options = provider_options(self._bundle.manifest, part, spec, self._engines)
        placement = Placement(TENSORRT_PROVIDER, options, (CUDA_PROVIDER,), {"cache_length": spec.positions})
        path = self._bundle.file(spec.files[0])
        if not spec.gpu_chains:
            return OrtTrtTransformer(path, spec, self._cuda, placement)
        steps = {"cuda": self._cuda, "placement": placement}
        return OrtTrtDraft(path, spec, self._gpu_chains(spec), self._expected_chain, ON_CUDA, **steps)


def provider_options(manifest: Manifest, part: str, spec: TransformerSpec, engines: Path) -> dict[str, str]:
    """One optimisation profile for every kind of step, which is all the provider takes, and caches of what it built."""
    longest = max(manifest.max_draft_length + 1, manifest.prefix_length, 2)
    profile = Profile(
        name="step",
        batch=(1, BRANCHES, BRANCHES * MAX_BATCH),
        tokens=(1, min(TYPICAL_DRAFT + 1, longest), longest),
        cache_length=spec.positions,
    )
    dynamic = {tensor.name: shapes(profile, tensor) for tensor in spec.inputs}
    ranges = {
        f"trt_profile_{which}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, three[i]))}" for name, three in dynamic.items()
        )
        for i, which in enumerate(("min", "opt", "max"))
    }
    return {
        **ranges,
        "trt_fp16_enable": str(int(spec.precision == "fp16")),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(engines),
        "trt_engine_cache_prefix": part,
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(engines),
    }


def _engine_folder(bundle: Path) -> Path:
    import onnxruntime

    folder = bundle / PLANS_FOLDER / f"ort-trt-{onnxruntime.__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackendError(
            f"backend ort-trt: {folder} can't be written ({error.strerror}), and engines are kept there. Make the "
            "bundle writable."
        ) from None
    return folder
