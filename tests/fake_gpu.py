"""A GPU made of host memory: a recording stand-in for `engines.cuda.Cuda`, and a TensorRT whose plans onnxruntime runs.

A fake plan's file holds the path of its graph. Device addresses are host addresses, so what a fake context computes is
what a real one would: pictures can be compared with those of the CPU backend.
"""

from __future__ import annotations

import ctypes
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from coolsd_trt.engines.bundle import Bundle, record_file
from coolsd_trt.engines.cuda import Gpu, out_of_memory
from coolsd_trt.engines.manifest import MANIFEST_NAME, EngineSet, FlavourName, PlanRecord
from coolsd_trt.engines.trt.plans import planned_parts
from coolsd_trt.engines.trt.profiles import profiles_of
from coolsd_trt.runtime import BackendError
from onnxruntime import InferenceSession, SessionOptions

GPU = Gpu("Fake", "8.9", 8 * 10**9)
VERSION = "1.7.1"
STREAM = 77


class FakeCuda:
    """Does what it is asked at once, records it, and refuses what a GPU would refuse."""

    def __init__(self, capacity: int = 10**9) -> None:
        self.stream = STREAM
        self.log: list[tuple[Any, ...]] = []
        self.device: dict[int, np.ndarray] = {}
        self.pinned: dict[int, np.ndarray] = {}
        self.graphs: list[list[Callable[[], None]]] = []
        self.closed = 0
        # Handle -> when it happened, None before.
        self.events: dict[int, int | None] = {}
        self._unfinished: set[int] = set()
        self._capacity = capacity
        self._recording: list[Callable[[], None]] | None = None

    def malloc(self, size: int, what: str) -> int:
        if size > self.memory()[0]:
            raise BackendError(out_of_memory(what, size, *self.memory()))
        memory = np.zeros(size, dtype=np.uint8)
        self.device[memory.ctypes.data] = memory
        self.log.append(("malloc", what, size))
        return memory.ctypes.data

    def memory(self) -> tuple[int, int]:
        return self._capacity - sum(memory.nbytes for memory in self.device.values()), self._capacity

    def free(self, address: int) -> None:
        del self.device[address]

    def malloc_host(self, size: int, what: str) -> np.ndarray:
        memory = np.zeros(size, dtype=np.uint8)
        self.pinned[memory.ctypes.data] = memory
        return memory

    def free_host(self, memory: np.ndarray) -> None:
        del self.pinned[memory.ctypes.data]

    def upload(self, address: int, host: np.ndarray) -> None:
        self._copy("upload", address, host.ctypes.data, host.nbytes)

    def download(self, host: np.ndarray, address: int) -> None:
        self._copy("download", host.ctypes.data, address, host.nbytes)

    def move(self, destination: int, source: int, size: int) -> None:
        self._copy("move", destination, source, size)

    def move_strided(self, destination: int, source: int, size: int, pitch: int, count: int) -> None:
        assert abs(destination - source) >= size, "the copy overlaps itself"
        for i in range(count):
            self._copy("move_strided", destination + i * pitch, source + i * pitch, size)

    def synchronize(self) -> None:
        assert self._recording is None
        self._unfinished.clear()
        self.log.append(("synchronize",))

    def capture(self, work: Callable[[], None]) -> Any:
        self._recording = []
        try:
            work()
            graph = self._recording
        finally:
            self._recording = None
        self.log.append(("capture",))
        self.graphs.append(graph)
        return graph

    def launch(self, graph: list[Callable[[], None]]) -> None:
        assert any(graph is known for known in self.graphs)
        self.log.append(("launch",))
        for operation in graph:
            operation()

    def free_graph(self, graph: list[Callable[[], None]]) -> None:
        index = next(i for i, known in enumerate(self.graphs) if known is graph)
        del self.graphs[index]

    def event(self) -> int:
        handle = max(self.events, default=0) + 1
        self.events[handle] = None
        return handle

    def record(self, event: int) -> None:
        assert self._recording is None, "an event within a graph happens when that is launched"
        self.events[event] = time.perf_counter_ns()
        self._unfinished.add(event)
        self.log.append(("record", event))

    def elapsed(self, start: int, end: int) -> int:
        assert not {start, end} & self._unfinished, "not ready: nobody waited for these events"
        return self.events[end] - self.events[start]

    def free_event(self, event: int) -> None:
        del self.events[event]

    def close(self) -> None:
        self.closed += 1

    def queue(self, entry: tuple[Any, ...], operation: Callable[[], None]) -> None:
        """Do it now, or note it in the graph that is being recorded."""
        if self._recording is not None:
            self._recording.append(operation)
            return
        self.log.append(entry)
        operation()

    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]

    def _copy(self, kind: str, destination: int, source: int, size: int) -> None:
        for address in (destination, source):
            assert self._inside(address, size), f"{kind}: {address} + {size} was never allocated"
        self.queue((kind, destination, source, size), lambda: ctypes.memmove(destination, source, size) and None)

    def _inside(self, address: int, size: int) -> bool:
        memories = [*self.device.items(), *self.pinned.items()]
        return any(start <= address and address + size <= start + memory.nbytes for start, memory in memories)


class FakeTrt:
    """The part of a TensorRT module that runs plans. rtx: the flavour with a runtime configuration."""

    def __init__(self, cuda: FakeCuda, version: str = VERSION, rtx: bool = True) -> None:
        self.__version__ = version
        self.ILogger = type("ILogger", (), {"ERROR": 1})
        self.ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED="user managed")
        if rtx:
            self.DynamicShapesKernelSpecializationStrategy = SimpleNamespace(EAGER="eager")
        self.deserialised = 0
        self.contexts: list[FakeContext] = []
        self.capturable = True
        self.full = False
        self.kernels = FakeKernels()
        self._cuda = cuda

    def Runtime(self, log: Any) -> Any:
        return SimpleNamespace(deserialize_cuda_engine=self._deserialise)

    def _deserialise(self, plan: bytes) -> Any:
        self.deserialised += 1
        if self.full:
            return None
        return FakeEngine(self, self._cuda, Path(plan.decode()))


class FakeKernels:
    """A runtime cache, which takes what one of the same GPU and version gave."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def serialize(self) -> bytes:
        return b"kernels"

    def deserialize(self, blob: bytes) -> bool:
        self.given.append(blob)
        return blob == b"kernels"


class FakeEngine:
    def __init__(self, trt: FakeTrt, cuda: FakeCuda, path: Path) -> None:
        self._trt, self._cuda = trt, cuda
        options = SessionOptions()
        options.intra_op_num_threads = 1
        self.session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = [value.name for value in (*self.session.get_inputs(), *self.session.get_outputs())]
        self.num_io_tensors = len(self._names)

    def get_tensor_name(self, index: int) -> str:
        return self._names[index]

    def get_device_memory_size_for_profile_v2(self, index: int) -> int:
        return 1000 * (index + 1)

    def create_runtime_config(self) -> Any:
        config = SimpleNamespace()
        config.create_runtime_cache = lambda: self._trt.kernels
        config.set_runtime_cache = lambda cache: setattr(config, "cache", cache)
        config.set_execution_context_allocation_strategy = lambda value: setattr(config, "strategy", value)
        return config

    def create_execution_context(self, how: Any) -> FakeContext:
        context = FakeContext(self, self._cuda, how)
        if hasattr(self._trt, "DynamicShapesKernelSpecializationStrategy"):
            assert (how.strategy, how.dynamic_shapes_kernel_specialization_strategy) == ("user managed", "eager")
            assert how.cache is not None
            context.is_stream_capturable = lambda stream: self._trt.capturable
        else:
            assert how == "user managed"
        self._trt.contexts.append(context)
        return context


class FakeContext:
    """One profile's state. `runs` keeps the shapes of every run."""

    def __init__(self, engine: FakeEngine, cuda: FakeCuda, how: Any) -> None:
        self._engine, self._cuda = engine, cuda
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.runs: list[dict[str, tuple[int, ...]]] = []

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream == STREAM
        self.profile = index
        return True

    def set_device_memory(self, address: int, size: int) -> None:
        assert self._cuda.device[address].nbytes >= size
        self.memory = address

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert name not in self.shapes, "another shape: what a graph recorded from this context would be stale"
        self.shapes[name] = tuple(shape)
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == STREAM
        addresses, shapes = dict(self.addresses), dict(self.shapes)
        self.runs.append(shapes)
        self._cuda.queue(("run", addresses, shapes), lambda: self._execute(addresses, shapes))
        return True

    def _execute(self, addresses: dict[str, int], shapes: dict[str, tuple[int, ...]]) -> None:
        session = self._engine.session
        binding = session.io_binding()
        for value in session.get_inputs():
            self._bind(binding.bind_input, value, shapes[value.name], addresses[value.name])
        sizes = {
            dim: size
            for value in session.get_inputs()
            for dim, size in zip(value.shape, shapes[value.name], strict=True)
            if isinstance(dim, str)
        }
        for value in session.get_outputs():
            shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in value.shape)
            self._bind(binding.bind_output, value, shape, addresses[value.name])
        session.run_with_iobinding(binding)

    def _bind(self, bind: Callable[..., None], value: Any, shape: tuple[int, ...], address: int) -> None:
        kinds = {"float": np.float32, "float16": np.float16, "int64": np.int64, "bool": np.bool_}
        dtype = kinds[value.type.removeprefix("tensor(").removesuffix(")")]
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert any(start <= address and address + size <= start + m.nbytes for start, m in self._cuda.device.items())
        bind(value.name, "cpu", 0, dtype, shape, address)


def add_fake_plans(
    source: Path,
    out: Path,
    *,
    flavour: FlavourName = "trt-rtx",
    version: str = VERSION,
    capability: str = GPU.compute_capability,
    max_batch: int = 4,
) -> Path:
    """A copy of a bundle with one set of fake plans."""
    shutil.copytree(source, out)
    bundle = Bundle.open(out)
    key = f"{flavour}-{version}-{capability}-b{max_batch}"
    folder = out / "engines" / key
    folder.mkdir(parents=True)
    plans = {}
    for part, spec in planned_parts(bundle.manifest).items():
        file = folder / f"{part.replace(' ', '_')}.plan"
        file.write_text(str(bundle.file(spec.files[0])))
        record = record_file(file)
        placed = record.model_copy(update={"name": f"engines/{key}/{record.name}"})
        profiles = profiles_of(bundle.manifest, part, max_batch)
        plans[part] = PlanRecord(
            file=placed, graph=spec.digest, workspace=0, seconds=0, profiles=profiles, layers={"ATTENTION_INPUT": 2}
        )
    engines = EngineSet(
        key=key,
        flavour=flavour,
        version=version,
        compute_capability=capability,
        precision=bundle.manifest.target.precision,
        max_batch=max_batch,
        builder="",
        plans=plans,
    )
    manifest = bundle.manifest.model_copy(update={"engine_sets": (*bundle.manifest.engine_sets, engines)})
    (out / MANIFEST_NAME).write_text(manifest.model_dump_json())
    return out
