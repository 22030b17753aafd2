"""One deserialised plan: an execution context for each shape of step, all on one block of activation memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...runtime.errors import BackendError, BundleError
from ..cuda import Cuda, out_of_memory
from ..manifest import GraphSpec, Profile
from .flavour import new_log
from .kernels import KernelCache
from .profiles import Shape

NO_CACHES: Mapping[str, int] = {}


class Plan:
    """A plan on the GPU. Steps run one after another, so contexts can share their memory, and since TensorRT 10 also an
    optimisation profile. A context keeps its shapes and caches, because a CUDA graph that was recorded from it is only
    good as long as it does.

    The driver must have been probed, and file, version and GPU compared with the manifest.
    """

    def __init__(self, trt: Any, cuda: Cuda, path: Path, spec: GraphSpec, profiles: Sequence[Profile]) -> None:
        self._trt, self._cuda, self._path, self._profiles = trt, cuda, path, profiles
        self._memory: int | None = None
        self._contexts: dict[tuple[Any, ...], Any] = {}
        self._addresses: dict[str, int] = {}
        self._kernels: KernelCache | None = None
        self._used = False
        self._log = new_log(trt)
        self._runtime = trt.Runtime(self._log)
        self._engine = self._deserialise()
        self._check(spec)
        self._how = self._allocation_strategy()
        sizes = [self._engine.get_device_memory_size_for_profile_v2(i) for i in range(len(profiles))]
        self._memory_size = max(1, *sizes)
        self._memory = cuda.malloc(self._memory_size, f"the activations of {path.stem}")

    def profile_for(self, tokens: int) -> int:
        """Index of the profile of a step of `tokens` tokens. Raises: BackendError when there is none."""
        for i, profile in enumerate(self._profiles):
            if profile.tokens[0] <= tokens <= profile.tokens[2]:
                return i
        longest = max(profile.tokens[2] for profile in self._profiles)
        raise BackendError(
            f"{self._path}: a step of {tokens} tokens was asked; the plan takes up to {longest}. "
            "Build the bundle again with a larger --max-draft."
        )

    def bind(self, addresses: Mapping[str, int]) -> None:
        """Tell every context where tensors live from now on."""
        self._addresses.update(addresses)
        for context in self._contexts.values():
            self._bind(context, addresses)

    def enqueue(self, profile: int, shapes: Mapping[str, Shape], caches: Mapping[str, int] = NO_CACHES) -> None:
        """Queue one run on inputs of these shapes. caches: addresses of tensors that `bind` was not told of.

        Raises: BackendError with TensorRT's own words.
        """
        context = self._context(profile, shapes, caches)
        self._require(context.execute_async_v3(self._cuda.stream), f"run a step of {shapes}")

    def capturable(self, profile: int, shapes: Mapping[str, Shape], caches: Mapping[str, int] = NO_CACHES) -> bool:
        """Whether such a run can be recorded in a CUDA graph; only TensorRT-RTX can say no."""
        ask = getattr(self._context(profile, shapes, caches), "is_stream_capturable", None)
        return ask is None or bool(ask(self._cuda.stream))

    def forget(self) -> None:
        """Drop all contexts: their caches are gone."""
        self._contexts.clear()

    def close(self) -> None:
        """Free contexts, engine and memory; calling it twice is fine."""
        if self._kernels is not None and self._used:
            self._kernels.save()
        self._kernels = None
        self._contexts.clear()
        self._how = self._engine = self._runtime = None
        if self._memory is not None:
            memory, self._memory = self._memory, None
            self._cuda.free(memory)

    def _deserialise(self) -> Any:
        content = self._path.read_bytes()
        engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            free, total = self._cuda.memory()
            if len(content) > free:
                raise BackendError(out_of_memory(f"the plan {self._path.name}", len(content), free, total))
            raise BackendError(f"{self._path}: TensorRT {self._trt.__version__} can't load it: {self._log.summary()}.")
        return engine

    def _context(self, profile: int, shapes: Mapping[str, Shape], caches: Mapping[str, int]) -> Any:
        self._used = True
        key = (*shapes.values(), *caches.values())
        if key not in self._contexts:
            context = self._engine.create_execution_context(self._how)
            if context is None:
                raise BackendError(f"{self._path}: TensorRT can't make an execution context: {self._log.summary()}.")
            stream = self._cuda.stream
            self._require(context.set_optimization_profile_async(profile, stream), f"select profile {profile}")
            context.set_device_memory(self._memory, self._memory_size)
            self._bind(context, {**self._addresses, **caches})
            for name, shape in shapes.items():
                self._require(context.set_input_shape(name, shape), f"take {name} {shape}")
            self._contexts[key] = context
        return self._contexts[key]

    def _bind(self, context: Any, addresses: Mapping[str, int]) -> None:
        for name, address in addresses.items():
            self._require(context.set_tensor_address(name, address), f"bind {name}")

    def _allocation_strategy(self) -> Any:
        """What contexts are made with: memory is ours; TensorRT-RTX wants that, and more, in a configuration."""
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        specialisation = getattr(self._trt, "DynamicShapesKernelSpecializationStrategy", None)
        if specialisation is None:
            return strategy
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(strategy)
        # TensorRT-RTX compiles kernels for the shapes it sees: at once, so that a graph records the final ones.
        config.dynamic_shapes_kernel_specialization_strategy = specialisation.EAGER
        self._kernels = KernelCache(config, self._path.with_suffix(".kernels"))
        return config

    def _check(self, spec: GraphSpec) -> None:
        """Another part's plan is told by its tensors."""
        expected = {tensor.name for tensor in (*spec.inputs, *spec.outputs)}
        found = {self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)}
        if expected != found:
            raise BundleError(
                f"{self._path}: it is a plan of another graph: it differs in {', '.join(sorted(expected ^ found))}. "
                "Build it again with `coolsd-trt build`."
            )

    def _require(self, succeeded: bool, task: str) -> None:
        if not succeeded:
            reason, self._log.errors = self._log.summary(), []
            raise BackendError(f"{self._path}: TensorRT can't {task}: {reason}.")
