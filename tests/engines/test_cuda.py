"""`engines.cuda` over a recording stand-in for `cuda.bindings.runtime`: what is called, and what errors become."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
from coolsd_trt.engines import cuda
from coolsd_trt.runtime import BackendError


class Error(Enum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100
    cudaErrorIllegalAddress = 700


class FakeRuntime:
    """Every call succeeds, unless `errors` names another result for it."""

    cudaError_t = Error
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3)
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.errors: dict[str, Error] = {}
        self.pinned = np.zeros(64, dtype=np.uint8)
        self.values: dict[str, tuple[object, ...]] = {
            "cudaGetDeviceCount": (1,),
            "cudaGetDeviceProperties": (
                SimpleNamespace(name=b"RTX 4090", major=8, minor=9, totalGlobalMem=24 * 10**9),
            ),
            "cudaStreamCreate": (5,),
            "cudaMalloc": (4096,),
            "cudaMallocHost": (self.pinned.ctypes.data,),
            "cudaMemGetInfo": (10**9, 8 * 10**9),
            "cudaStreamEndCapture": ("graph",),
            "cudaGraphInstantiate": ("executable",),
            "cudaEventCreate": ("event",),
            "cudaEventElapsedTime": (0.25,),
            "cudaGetErrorString": (b"in CUDA's words",),
        }

    def __getattr__(self, name: str) -> Callable[..., tuple[object, ...]]:
        def call(*arguments: object) -> tuple[object, ...]:
            self.calls.append((name, *arguments))
            return (self.errors.get(name, Error.cudaSuccess), *self.values.get(name, ()))

        return call

    def names(self) -> list[object]:
        return [call[0] for call in self.calls]


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(cuda, "_runtime", lambda: fake)
    return fake


def test_the_gpu_is_described(runtime: FakeRuntime) -> None:
    assert cuda.probe_gpu() == cuda.Gpu("RTX 4090", "8.9", 24 * 10**9)


@pytest.mark.parametrize(
    "error, words",
    [
        (Error.cudaErrorInsufficientDriver, "no usable NVIDIA driver"),
        (Error.cudaErrorNoDevice, "no GPU is visible"),
        (Error.cudaErrorIllegalAddress, r"look for a GPU: cudaErrorIllegalAddress \(in CUDA's words\)"),
    ],
)
def test_a_machine_without_a_usable_gpu_is_named(runtime: FakeRuntime, error: Error, words: str) -> None:
    runtime.errors["cudaGetDeviceCount"] = error
    with pytest.raises(BackendError, match=words):
        cuda.probe_gpu()


def test_copies_go_the_right_way_on_the_one_stream(runtime: FakeRuntime) -> None:
    device = cuda.Cuda()
    address = device.malloc(64, "x")
    host = device.malloc_host(64, "x")
    assert host.ctypes.data == runtime.pinned.ctypes.data
    device.upload(address, host)
    device.download(host[:8], address)
    device.move(address, address + 32, 16)
    device.move_strided(address, address + 32, 4, 8, 3)
    assert runtime.calls[-1] == ("cudaMemcpy2DAsync", 4096, 8, 4128, 8, 4, 3, 3, 5)
    copies = [call[1:] for call in runtime.calls if call[0] == "cudaMemcpyAsync"]
    pointer = host.ctypes.data
    assert copies == [(4096, pointer, 64, 1, 5), (pointer, 4096, 8, 2, 5), (4096, 4128, 16, 3, 5)]
    assert ("cudaMemsetAsync", 4096, 0, 64, 5) in runtime.calls


def test_a_graph_is_captured_instantiated_and_launched(runtime: FakeRuntime) -> None:
    device = cuda.Cuda()
    graph = device.capture(lambda: device.move(1, 2, 3))
    device.launch(graph)
    device.free_graph(graph)
    device.close()
    device.close()
    assert runtime.names() == [
        "cudaSetDevice",
        "cudaStreamCreate",
        "cudaStreamBeginCapture",
        "cudaMemcpyAsync",
        "cudaStreamEndCapture",
        "cudaGraphInstantiate",
        "cudaGraphDestroy",
        "cudaGraphLaunch",
        "cudaGraphExecDestroy",
        "cudaStreamDestroy",
    ]


def test_a_capture_that_fails_leaves_the_stream_usable(runtime: FakeRuntime) -> None:
    device = cuda.Cuda()
    runtime.errors["cudaMemcpyAsync"] = Error.cudaErrorIllegalAddress
    with pytest.raises(BackendError, match="copy: cudaErrorIllegalAddress"):
        device.capture(lambda: device.move(1, 2, 3))
    assert "cudaStreamEndCapture" in runtime.names()


def test_events_happen_on_the_one_stream_and_are_apart_in_nanoseconds(runtime: FakeRuntime) -> None:
    device = cuda.Cuda()
    event = device.event()
    device.record(event)
    assert device.elapsed(event, event) == 250_000
    device.free_event(event)
    assert runtime.calls[-3:] == [
        ("cudaEventRecord", "event", 5),
        ("cudaEventElapsedTime", "event", "event"),
        ("cudaEventDestroy", "event"),
    ]


def test_out_of_memory_says_how_much_was_asked_and_what_to_lower(runtime: FakeRuntime) -> None:
    runtime.errors["cudaMalloc"] = Error.cudaErrorMemoryAllocation
    with pytest.raises(BackendError, match=r"the KV cache needs 3\.50 GB, 1\.00 of 8\.00 GB are free\. Lower --batch"):
        cuda.Cuda().malloc(3_500_000_000, "the KV cache")


def test_errors_of_kernels_surface_at_the_end_of_a_step(runtime: FakeRuntime) -> None:
    device = cuda.Cuda()
    runtime.errors["cudaStreamSynchronize"] = Error.cudaErrorIllegalAddress
    with pytest.raises(BackendError, match="CUDA can't finish a step: cudaErrorIllegalAddress"):
        device.synchronize()


def test_the_real_bindings_have_every_name() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings: pip install 'coolsd-trt[rtx]'")
    for name in (*FakeRuntime().values, "cudaFree", "cudaFreeHost", "cudaGraphDestroy", "cudaGraphExecDestroy"):
        assert callable(getattr(runtime, name))
    for name in ("cudaSetDevice", "cudaMemsetAsync", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaStreamDestroy"):
        assert callable(getattr(runtime, name))
    assert callable(runtime.cudaMemcpy2DAsync)
    for name in (
        "cudaEventRecord",
        "cudaEventDestroy",
        "cudaStreamBeginCapture",
        "cudaStreamEndCapture",
        "cudaGraphLaunch",
    ):
        assert callable(getattr(runtime, name))
    assert {error.name for error in Error} <= set(runtime.cudaError_t.__members__)
