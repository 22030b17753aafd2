"""The CUDA calls this project makes, and nothing else: one device, one stream, errors as exceptions.

Everything above works with addresses (int) and NumPy views of pinned memory, so a recording stand-in with these methods
replaces the GPU in tests.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.errors import BackendError

INSTALL = "Install it: pip install cuda-bindings."


@dataclass(frozen=True)
class Gpu:
    """memory: bytes in all. compute_capability: like "8.9"."""

    name: str
    compute_capability: str
    memory: int


def probe_gpu(device: int = 0) -> Gpu:
    """Ask the driver for a GPU. Comes before any TensorRT object: without a driver those crash instead of failing.

    Raises: BackendError when cuda-bindings, the driver or the GPU is missing.
    """
    runtime = _runtime()
    error, count = runtime.cudaGetDeviceCount()
    names = runtime.cudaError_t
    if error == names.cudaErrorInsufficientDriver:
        raise BackendError(
            "no usable NVIDIA driver on this machine. If there is one, it is too old for the installed cuda-bindings: "
            "pip install 'cuda-bindings<13' goes with drivers for CUDA 12 (and JetPack 6)."
        )
    if error == names.cudaErrorNoDevice or (error == names.cudaSuccess and count == 0):
        raise BackendError("an NVIDIA driver is installed, but no GPU is visible (check CUDA_VISIBLE_DEVICES).")
    _check(runtime, error, "look for a GPU")
    properties = _call(runtime, "read the GPU's properties", runtime.cudaGetDeviceProperties, device)
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    return Gpu(name.strip("\0"), f"{properties.major}.{properties.minor}", int(properties.totalGlobalMem))


class Cuda:
    """One stream of one device. Raises: BackendError from every method, with CUDA's name for what went wrong."""

    def __init__(self, device: int = 0) -> None:
        self._runtime = _runtime()
        self._call("select the GPU", self._runtime.cudaSetDevice, device)
        self._stream = self._call("create a stream", self._runtime.cudaStreamCreate)

    @property
    def stream(self) -> int:
        """The stream's handle, as TensorRT takes it."""
        return int(self._stream)

    def malloc(self, size: int, what: str) -> int:
        """Device memory of `size` bytes, zeroed. what: named when there is not enough."""
        error, address = self._runtime.cudaMalloc(size)
        if error == self._runtime.cudaError_t.cudaErrorMemoryAllocation:
            raise BackendError(out_of_memory(what, size, *self.memory()))
        _check(self._runtime, error, f"allocate {what}")
        self._call(f"clear {what}", self._runtime.cudaMemsetAsync, address, 0, size, self._stream)
        self.synchronize()
        return int(address)

    def memory(self) -> tuple[int, int]:
        """Bytes of device memory that are free, and in all."""
        free, total = self._call("ask for free memory", self._runtime.cudaMemGetInfo)
        return int(free), int(total)

    def free(self, address: int) -> None:
        self._call("free device memory", self._runtime.cudaFree, address)

    def malloc_host(self, size: int, what: str) -> NDArray[np.uint8]:
        """Page-locked host memory, [size] bytes: copies from and to it run beside the host."""
        address = self._call(f"pin host memory for {what}", self._runtime.cudaMallocHost, size)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(int(address)))

    def free_host(self, memory: NDArray[np.uint8]) -> None:
        self._call("free host memory", self._runtime.cudaFreeHost, memory.ctypes.data)

    def upload(self, address: int, host: NDArray[Any]) -> None:
        """Queue a copy of contiguous pinned memory to the device."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._copy(address, host.ctypes.data, host.nbytes, kind)

    def download(self, host: NDArray[Any], address: int) -> None:
        """Queue a copy from the device to contiguous pinned memory."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._copy(host.ctypes.data, address, host.nbytes, kind)

    def move(self, destination: int, source: int, size: int) -> None:
        """Queue a copy within the device."""
        self._copy(destination, source, size, self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice)

    def move_strided(self, destination: int, source: int, size: int, pitch: int, count: int) -> None:
        """Queue `count` copies of `size` bytes within the device; each begins `pitch` bytes after the one before."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        copy = self._runtime.cudaMemcpy2DAsync
        self._call("copy", copy, destination, pitch, source, pitch, size, count, kind, self._stream)

    def synchronize(self) -> None:
        """Wait for everything queued; errors of kernels surface here."""
        self._call("finish a step", self._runtime.cudaStreamSynchronize, self._stream)

    def capture(self, work: Callable[[], None]) -> Any:
        """Record what `work` queues, without running it, as a graph for `launch`."""
        runtime = self._runtime
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("begin a graph", runtime.cudaStreamBeginCapture, self._stream, mode)
        try:
            work()
        except BaseException:
            # Or the stream would stay unusable.
            runtime.cudaStreamEndCapture(self._stream)
            raise
        graph = self._call("record a graph", runtime.cudaStreamEndCapture, self._stream)
        try:
            return self._call("instantiate a graph", runtime.cudaGraphInstantiate, graph, 0)
        finally:
            self._call("free a recorded graph", runtime.cudaGraphDestroy, graph)

    def launch(self, graph: Any) -> None:
        """Queue everything a graph recorded."""
        self._call("launch a graph", self._runtime.cudaGraphLaunch, graph, self._stream)

    def free_graph(self, graph: Any) -> None:
        self._call("free a graph", self._runtime.cudaGraphExecDestroy, graph)

    def event(self) -> Any:
        """A point on the stream, for `record`."""
        return self._call("create an event", self._runtime.cudaEventCreate)

    def record(self, event: Any) -> None:
        """Queue an event: it happens once all that was queued before is done."""
        self._call("record an event", self._runtime.cudaEventRecord, event, self._stream)

    def elapsed(self, start: Any, end: Any) -> int:
        """Nanoseconds between two events that have happened (`synchronize`), in steps of about 500."""
        milliseconds = self._call("time a step", self._runtime.cudaEventElapsedTime, start, end)
        return round(1e6 * milliseconds)

    def free_event(self, event: Any) -> None:
        self._call("free an event", self._runtime.cudaEventDestroy, event)

    def close(self) -> None:
        """Destroy the stream; calling it twice is fine."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._call("destroy the stream", self._runtime.cudaStreamDestroy, stream)

    def _copy(self, destination: int, source: int, size: int, kind: Any) -> None:
        self._call("copy", self._runtime.cudaMemcpyAsync, destination, source, size, kind, self._stream)

    def _call(self, task: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return _call(self._runtime, task, function, *arguments)


def out_of_memory(what: str, asked: int, free: int, total: int) -> str:
    """The message: how much was asked for what, how much there is, and what to lower."""
    return (
        f"out of GPU memory: {what} needs {asked / 1e9:.2f} GB, {free / 1e9:.2f} of {total / 1e9:.2f} GB are free. "
        "Lower --batch-size, or build the bundle with --precision fp16 or a smaller --max-batch."
    )


def _runtime() -> ModuleType:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendError(f"cuda-bindings can't be loaded ({error}). {INSTALL}") from None
    module: ModuleType = runtime
    return module


def _call(runtime: Any, task: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call, check, unpack: bindings return (error, value, ...)."""
    error, *values = function(*arguments)
    _check(runtime, error, task)
    return values[0] if len(values) == 1 else tuple(values)


def _check(runtime: Any, error: Any, task: str) -> None:
    if error != runtime.cudaError_t.cudaSuccess:
        _, text = runtime.cudaGetErrorString(error)
        raise BackendError(f"CUDA can't {task}: {error.name} ({text.decode()}).")
