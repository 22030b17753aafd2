"""One ONNX graph to one TensorRT plan: strongly typed, KV caches updated in place."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.errors import BackendError, InputError
from ...runtime.files import replacing_file
from ..manifest import GraphSpec, Profile, TransformerSpec
from .flavour import new_log
from .profiles import shapes


@dataclass(frozen=True)
class BuiltPlan:
    """data: the serialised engine (a buffer). layers: of the network, by kind. workspace: bytes of activations, the
    largest profile's."""

    data: Any
    layers: dict[str, int]
    workspace: int
    seconds: float


class PlanBuilder:
    """Builds plans with one TensorRT module for one compute capability.

    timing_cache: a file of kernel timings, read if it is there and rewritten; TensorRT-RTX times nothing and has none.
    """

    def __init__(self, trt: Any, capability: str | None, timing_cache: Path | None = None) -> None:
        self._trt, self._capability, self._timing_cache = trt, capability, timing_cache

    def build(self, onnx_path: Path, spec: GraphSpec, profiles: Sequence[Profile]) -> BuiltPlan:
        """Raises: BackendError with TensorRT's own words; InputError for a capability it does not know."""
        start = time.perf_counter()
        log = new_log(self._trt)
        builder = self._trt.Builder(log)
        network, _parser = parse_network(self._trt, log, builder, onnx_path, spec)
        config = self._configure(builder, spec, profiles)
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise BackendError(f"{onnx_path}: TensorRT {self._trt.__version__} can't build it: {log.summary()}.")
        self._keep_timings(config)
        layers = Counter(network.get_layer(i).type.name for i in range(network.num_layers))
        return BuiltPlan(plan, dict(layers), max(log.activations, default=0), time.perf_counter() - start)

    def _configure(self, builder: Any, spec: GraphSpec, profiles: Sequence[Profile]) -> Any:
        trt = self._trt
        config = builder.create_builder_config()
        # fp32 means fp32: with TF32, parity with the CPU would end at three digits.
        config.clear_flag(trt.BuilderFlag.TF32)
        if hasattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
            # Without it TensorRT may allocate in the middle of a step, which a CUDA graph can't record.
            config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
        if self._capability is not None:
            config.num_compute_capabilities = 1
            config.set_compute_capability(capability_enum(trt, self._capability), 0)
        for profile in profiles:
            made = builder.create_optimization_profile()
            for tensor in spec.inputs:
                made.set_shape(tensor.name, *shapes(profile, tensor))
            if config.add_optimization_profile(made) < 0:
                raise BackendError(f"optimisation profile {profile.name}: TensorRT refused {profile}.")
        self._recall_timings(config)
        return config

    def _recall_timings(self, config: Any) -> None:
        """Timings of another driver or another model of GPU are refused, and taken again."""
        if self._timing_cache is None:
            return
        stored = self._timing_cache.read_bytes() if self._timing_cache.is_file() else b""
        cache = config.create_timing_cache(stored)
        if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
            config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)

    def _keep_timings(self, config: Any) -> None:
        if self._timing_cache is None:
            return
        with replacing_file(self._timing_cache) as temporary:
            temporary.write_bytes(memoryview(config.get_timing_cache().serialize()))


def parse_network(trt: Any, log: Any, builder: Any, onnx_path: Path, spec: GraphSpec) -> tuple[Any, Any]:
    """The network of a graph, and the parser, which owns the weights and must outlive the build.

    Raises: BackendError naming the nodes TensorRT refused.
    """
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse(_with_fixed_cache(onnx_path, spec), str(onnx_path)):
        reasons = [str(parser.get_error(i).desc()) for i in range(parser.num_errors)] or [log.summary()]
        raise BackendError(f"{onnx_path}: TensorRT {trt.__version__} can't read it: {' / '.join(reasons)}.")
    _allow_decomposed_attention(trt, network)
    return network, parser


def capability_enum(trt: Any, capability: str) -> Any:
    """ "8.9" -> ComputeCapability.SM89. Raises: InputError naming those this TensorRT builds for."""
    known = {name: value for name, value in trt.ComputeCapability.__members__.items() if name.startswith("SM")}
    wanted = "SM" + capability.replace(".", "")
    if wanted not in known:
        names = ", ".join(f"{name[2:-1]}.{name[-1]}" for name in sorted(known, key=lambda name: int(name[2:])))
        raise InputError(
            f"--compute-capability {capability}: {trt.__name__} {trt.__version__} does not build for it. "
            f"Expected one of: {names}."
        )
    return known[wanted]


def fix_cache_length(model: Any, length: int) -> bool:
    """Put a number for the cache length into an ONNX model. Returns: whether there was one without."""
    dims = [
        dim
        for value in (*model.graph.input, *model.graph.output)
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param == "cache_length"
    ]
    for dim in dims:
        dim.dim_value = length
    return bool(dims)


def _with_fixed_cache(onnx_path: Path, spec: GraphSpec) -> bytes:
    """The graph with numbers for the cache length; its weights stay in their file."""
    import onnx

    model = onnx.load(str(onnx_path), load_external_data=False)
    if isinstance(spec, TransformerSpec):
        fix_cache_length(model, spec.positions)
    content: bytes = model.SerializeToString()
    return content


def _allow_decomposed_attention(trt: Any, network: Any) -> None:
    """Where no fused kernel exists (fp32, odd head sizes) the build would fail; where one does it is still used."""
    if not hasattr(trt.LayerType, "ATTENTION_INPUT"):
        return  # an older TensorRT, and a graph without such layers
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer
            layer.attention.decomposable = True
