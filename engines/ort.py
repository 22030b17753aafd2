"""onnxruntime, on the CPU unless told otherwise; caches are updated in place: one buffer is both past and present."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.errors import BackendError
from ..runtime.protocols import StepOutput
from ..runtime.spans import span
from .backends import onnxruntime_has_tensor_scatter
from .manifest import TransformerSpec

CPU_PROVIDER = "CPUExecutionProvider"


@dataclass(frozen=True)
class Placement:
    """Where a session runs. options: the provider's. helpers: providers for the nodes it leaves. sizes: numbers for
    symbolic dimensions."""

    provider: str = CPU_PROVIDER
    options: Mapping[str, str] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


ON_CPU = Placement()


def open_session(
    path: Path,
    threads: int | None,
    placement: Placement = ON_CPU,
    low_memory: bool = False,
    wide_sums: bool = False,
) -> Any:
    """An inference session.

    Args: low_memory: run the graph as it is, slower, and copy no weights: on a CPU those in fp16 are widened one after
    the other as they are needed, instead of all of them when the session opens. wide_sums: add products of bytes in 32
    bits, where onnxruntime's default is 16, which can overflow; for graphs with MatMulInteger alone.
    Raises: BackendError with onnxruntime's own words, or when it left the provider for another, which it does without
    an error.
    """
    try:
        import onnxruntime
    except ImportError:
        raise BackendError(
            f"{path}: it runs on onnxruntime, which is not installed. Install it: pip install 'coolsd-trt[cpu]'."
        ) from None

    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    # Spinning workers make a loaded machine 2x slower and an idle one barely faster.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if wide_sums:
        options.add_session_config_entry("session.x64quantprecision", "1")
    if low_memory:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    for name, size in placement.sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    provider = placement.provider
    providers = [(provider, dict(placement.options)), *((helper, {}) for helper in placement.helpers)]
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises bare pybind exceptions
        raise BackendError(f"{path}: onnxruntime {onnxruntime.__version__} can't load it: {error}") from None
    if session.get_providers()[0] != provider:
        raise BackendError(
            f"{path}: {provider} was asked, onnxruntime {onnxruntime.__version__} fell back to "
            f"{session.get_providers()[0]}. Check that CUDA, cuDNN and (for TensorRT) TensorRT 10 of the versions it "
            "wants are installed, or use --backend ort-cpu."
        )
    return session


@functools.cache
def runs_gqa() -> bool:
    """Whether the installed onnxruntime's GroupQueryAttention takes rows of different lengths."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    return any(
        schema.name == "GroupQueryAttention" and any(value.name == "query_seqlens" for value in schema.inputs)
        for schema in get_all_operator_schema()
    )


@dataclass
class Bound:
    """Host buffers of one step shape, and the I/O binding that points at them."""

    inputs: dict[str, NDArray[Any]]
    outputs: dict[str, NDArray[Any]]
    binding: Any

    def bind_buffers(self) -> None:
        """Point the binding at all buffers."""
        for bind, arrays in ((self.binding.bind_input, self.inputs), (self.binding.bind_output, self.outputs)):
            for name, array in arrays.items():
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


class OrtTransformer:
    """A target or draft graph with static caches [rows, kv_heads, cache_length, head_dim] in the graph's precision.

    Buffers and bindings are made once per (rows, S) and reused; a step allocates nothing. lazy: open the session with
    the first step.
    """

    cache_device = "cpu"

    def __init__(
        self,
        path: Path,
        spec: TransformerSpec,
        threads: int | None = None,
        low_memory: bool = False,
        placement: Placement = ON_CPU,
        lazy: bool = False,
    ) -> None:
        _check_graph(path, spec)
        self._path, self._spec, self._placement = path, spec, placement
        self._open_session = functools.partial(
            open_session,
            threads=threads,
            placement=placement,
            low_memory=low_memory,
            wide_sums=spec.quantisation == "dynamic" and not _has_vnni(),
        )
        self._session: Any = None if lazy else self._open_session(path)
        self._takes_features = any(tensor.name == "features" for tensor in spec.inputs)
        self._caches: dict[str, Any] = {}
        self._cache_shape: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._bound: dict[tuple[int, int], Bound] = {}

    @property
    def graph(self) -> str:
        """The file it runs: of a bundle's graphs for one part, the one that suits this machine."""
        return self._path.name

    @property
    def cache_length(self) -> int:
        return self._cache_shape[2]

    def allocate(self, rows: int, cache_length: int) -> None:
        spec = self._spec
        if self.cache_length == cache_length and self._cache_shape[0] >= rows:
            return
        self._free_caches()
        shape = (rows, spec.kv_heads, cache_length, spec.head_dim)
        for name in (f"{kind}_{i}" for i in range(spec.layers) for kind in ("key", "value")):
            self._caches[name] = self._new_cache(shape, np.dtype(spec.cache_dtype))
        self._cache_shape = shape

    def step(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        write_indices: NDArray[np.int64],
        features: NDArray[np.float32] | None = None,
    ) -> StepOutput:
        rows, length = input_ids.shape
        bound = self._bound.get((rows, length)) or self._bind(rows, length)
        with span("copies"):
            bound.inputs["input_ids"][...] = input_ids
            bound.inputs["position_ids"][...] = position_ids
            bound.inputs["mask"][...] = mask
            bound.inputs["write_indices"][...] = write_indices
            if features is not None:
                bound.inputs["features"][...] = features
        try:
            with span("engine"):
                self._session.run_with_iobinding(bound.binding)
        except Exception as error:  # onnxruntime raises bare pybind exceptions
            raise BackendError(f"onnxruntime failed in a step of {rows} rows x {length} tokens: {error}") from None
        return StepOutput(bound.outputs["logits"], bound.outputs["hidden"])

    def copy_row(self, source: int, destination: int) -> None:
        for cache in self._caches.values():
            cache[destination] = cache[source]

    def compact(self, row: int, sources: NDArray[np.int64], destination: int) -> None:
        for cache in self._caches.values():
            cache[row, :, destination : destination + len(sources)] = cache[row][:, sources]

    def close(self) -> None:
        self._free_caches()
        self._session = None

    def _new_cache(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Zeroed memory of one cache."""
        return np.zeros(shape, dtype=dtype)

    def _address(self, cache: Any) -> int:
        address: int = cache.ctypes.data
        return address

    def _free_caches(self) -> None:
        self._bound.clear()
        self._caches.clear()
        self._cache_shape = (0, 0, 0, 0)

    def _bind(self, rows: int, length: int) -> Bound:
        if self._session is None:
            self._session = self._open_session(self._path)
        spec = self._spec
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.zeros((rows, length), dtype=np.int64),
            "position_ids": np.zeros((rows, length), dtype=np.int64),
            "mask": np.zeros((rows, 1, length, self.cache_length), dtype=np.bool_),
            "write_indices": np.zeros(rows, dtype=np.int64),
        }
        if self._takes_features:
            inputs["features"] = np.zeros((rows, length, spec.hidden_size), dtype=np.float32)
        outputs = {
            "logits": np.zeros((rows, length, spec.vocab_size), dtype=np.float32),
            "hidden": np.zeros((rows, length, spec.hidden_size), dtype=np.float32),
        }
        bound = Bound(inputs, outputs, self._session.io_binding())
        bound.bind_buffers()
        self._bind_caches(bound.binding, rows, [""])
        return self._bound.setdefault((rows, length), bound)

    def _bind_caches(self, binding: Any, rows: int, stages: Sequence[str]) -> None:
        """Bind every cache as past and as the present of all stages, whose names are suffixes.

        The first `rows` rows are contiguous, so a smaller batch is the same pointer with a smaller shape.
        """
        for name, cache in self._caches.items():
            place = (self.cache_device, 0, np.dtype(self._spec.cache_dtype).type, (rows, *self._cache_shape[1:]))
            binding.bind_input(f"past_{name}", *place, self._address(cache))
            for stage in stages:
                binding.bind_output(f"present_{name}{stage}", *place, self._address(cache))


def _check_graph(path: Path, spec: TransformerSpec) -> None:
    """What onnxruntime would only say in its own words."""
    if spec.lowering == "tensor_scatter" and not onnxruntime_has_tensor_scatter():
        import onnxruntime

        raise BackendError(
            f"{path}: its lowering is tensor_scatter, which needs onnxruntime 1.24; {onnxruntime.__version__} is "
            "installed. Upgrade it, or build the bundle again with --lowering portable."
        )
    if spec.precision == "bf16":
        raise BackendError(
            f"{path}: its weights are bfloat16, for which onnxruntime has no kernels on the CPU and NumPy no type. Use "
            "backend trt-rtx or trt, or build the bundle again with --precision fp16."
        )


def _has_vnni() -> bool:
    """Whether the processor adds products of bytes in 32 bits by itself; False where it can't be told."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and "vnni" in info.read_text()


def _closed(path: Path) -> BackendError:
    return BackendError(f"{path}: it has been closed. Load the bundle again.")


class _OrtGraph:
    """A graph without state."""

    def __init__(self, path: Path, threads: int | None = None, placement: Placement = ON_CPU) -> None:
        self._path = path
        self._session = open_session(path, threads, placement)

    def run(self, **inputs: NDArray[Any]) -> list[Any]:
        """Raises: BackendError when it is closed, or with onnxruntime's own words."""
        if self._session is None:
            raise _closed(self._path)
        try:
            outputs: list[Any] = self._session.run(None, inputs)
        except Exception as error:  # onnxruntime raises bare pybind exceptions
            raise BackendError(f"onnxruntime failed: {error}") from None
        return outputs

    def close(self) -> None:
        self._session = None


class OrtImageDecoder(_OrtGraph):
    """The graph from codes to pixels."""

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """[N, rows * columns] int64 -> [N, 3, height, width] float32."""
        pixels: NDArray[np.float32] = self.run(codes=tokens)[0]
        return pixels


class OrtImageEncoder:
    """The graph from pixels to codes. Loaded when the first picture comes: making pictures does not need it."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        self._path, self._threads = path, threads
        self._graph: _OrtGraph | None = None
        self._closed = False

    def encode(self, pixels: NDArray[np.float32]) -> NDArray[np.int64]:
        """[N, 3, height, width] float32 in [-1, 1] -> [N, rows * columns] int64."""
        if self._closed:
            raise _closed(self._path)
        self._graph = self._graph or _OrtGraph(self._path, self._threads)
        codes: NDArray[np.int64] = self._graph.run(pixels=pixels)[0]
        return codes

    def close(self) -> None:
        self._graph, self._closed = None, True


class OrtCaptionProjection(_OrtGraph):
    """The graph from text features to the target's embeddings."""

    def project(self, features: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """[N, slots, feature_size] -> [N, slots, H], and [slots, H] of the unconditional branch."""
        conditional, unconditional = self.run(caption=features)
        return conditional, unconditional
