"""A target or draft on TensorRT: caches stay on the GPU, a step is one CUDA graph once its shape has been seen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...runtime.errors import BackendError
from ...runtime.protocols import StepOutput
from ...runtime.spans import span
from ..cuda import Cuda
from ..device_cache import compact_caches
from ..manifest import Tensor, TransformerSpec
from .clock import GpuClock
from .plan import Plan
from .profiles import BRANCHES, Shape, resolve
from .recordings import Recordings
from .staging import Staging

OUTPUTS = ("logits", "hidden")
# Of each cache buffer in the one block that holds them all.
ALIGNMENT = 256


class TrtTransformer:
    """Caches [rows, kv_heads, positions, head_dim] in the plan's precision, one buffer bound as past and as present;
    where TensorRT has no layer that updates it in place, a step copies it into a second one, and they change places.
    """

    def __init__(self, cuda: Cuda, plan: Plan, spec: TransformerSpec, max_batch: int) -> None:
        self._cuda, self._plan, self._spec, self._max_batch = cuda, plan, spec, max_batch
        tensors = {tensor.name: tensor for tensor in (*spec.inputs, *spec.outputs)}
        cached = ("past_", "present_")
        self._inputs = {tensor.name: tensor for tensor in spec.inputs if not tensor.name.startswith(cached)}
        self._outputs = {name: tensors[name] for name in OUTPUTS}
        self._past = {tensor.name: tensor for tensor in spec.inputs if tensor.name.startswith("past_")}
        self._staged = {
            name: Staging(cuda, name, tensor.dtype) for name, tensor in {**self._inputs, **self._outputs}.items()
        }
        self._clock = GpuClock(cuda)
        self._rows = 0
        self._block = 0
        # Where the entries are, and where the next step writes them.
        self._caches: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._recordings = Recordings(cuda)
        self._addresses: dict[str, int] = {}

    @property
    def cache_length(self) -> int:
        """The plan's own length, whatever was asked: its cache is of one size."""
        return self._spec.positions if self._caches else 0

    def allocate(self, rows: int, cache_length: int) -> None:
        spec = self._spec
        if cache_length > spec.positions:
            raise BackendError(
                f"a cache of {cache_length} positions was asked; the plan has {spec.positions}. "
                "Draft fewer tokens at once, or build the bundle with a larger --max-draft."
            )
        if rows > BRANCHES * self._max_batch:
            raise BackendError(
                f"a batch of {-(-rows // BRANCHES)} pictures was asked; the plans take {self._max_batch}. "
                f"Use --batch-size {self._max_batch}, or build the plans with a larger --max-batch."
            )
        if rows <= self._rows:
            return
        self._free_caches()
        self._row_bytes = spec.kv_heads * spec.positions * spec.head_dim * spec.cache_itemsize
        stride = -(-rows * self._row_bytes // ALIGNMENT) * ALIGNMENT
        what = f"the KV cache of {rows} rows x {spec.positions} positions"
        copies = 1 if spec.lowering == "tensor_scatter" else 2
        self._block = self._cuda.malloc(copies * len(self._past) * stride, what)
        addresses = range(self._block, self._block + copies * len(self._past) * stride, stride)
        names = [name.removeprefix("past_") for name in self._past]
        self._caches = dict(zip(names, addresses, strict=False))
        self._next = dict(zip(names, addresses[-len(names) :], strict=True))
        self._rows = rows

    def step(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        write_indices: NDArray[np.int64],
        features: NDArray[np.float32] | None = None,
    ) -> StepOutput:
        rows, length = input_ids.shape
        self._reserve(rows, length)
        with span("copies"):
            self._fill(input_ids, position_ids, mask, write_indices, features)
        with span("engine"):
            self._clock.start()
            self._recordings.run(
                (rows, length, *self._caches.values()),
                lambda: self._enqueue(rows, length),
                lambda: self._plan.capturable(*self._run(rows, length)),
            )
            self._clock.stop()
            self._caches, self._next = self._next, self._caches
            self._cuda.synchronize()
            self._clock.read()
        logits, hidden = (self._staged[name].view(self._shape(self._outputs[name], rows, length)) for name in OUTPUTS)
        return StepOutput(logits, hidden)

    def copy_row(self, source: int, destination: int) -> None:
        for address in self._caches.values():
            self._cuda.move(
                address + destination * self._row_bytes, address + source * self._row_bytes, self._row_bytes
            )

    def compact(self, row: int, sources: NDArray[np.int64], destination: int) -> None:
        spec = self._spec
        shape, itemsize = (spec.kv_heads, spec.positions, spec.head_dim), spec.cache_itemsize
        compact_caches(self._cuda, self._caches.values(), shape, itemsize, row, sources, destination)

    def close(self) -> None:
        """Free graphs, caches, staging, events and the plan; calling it twice is fine."""
        self._clock.close()
        self._recordings.clear()
        self._free_caches()
        for staging in self._staged.values():
            staging.close()
        self._plan.close()

    def _reserve(self, rows: int, length: int) -> None:
        """Room for a step; graphs recorded with older addresses go."""
        tensors = {**self._inputs, **self._outputs}
        try:
            for name, staged in self._staged.items():
                staged.reserve(self._shape(tensors[name], rows, length))
        finally:  # also when there was no room: what is there has moved by then
            addresses = {name: staged.address for name, staged in self._staged.items() if staged.address}
            if addresses != self._addresses:
                self._recordings.clear()
                self._plan.bind(addresses)
                self._addresses = addresses

    def _fill(
        self,
        input_ids: NDArray[np.int64],
        position_ids: NDArray[np.int64],
        mask: NDArray[np.bool_],
        write_indices: NDArray[np.int64],
        features: NDArray[np.float32] | None,
    ) -> None:
        """The host's side of a step's inputs."""
        given = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "mask": mask,
            "write_indices": write_indices,
            "features": features,
        }
        for name, tensor in self._inputs.items():
            values = given[name]
            self._staged[name].view(self._shape(tensor, *input_ids.shape))[...] = 0 if values is None else values

    def _enqueue(self, rows: int, length: int) -> None:
        """Inputs up, one run, outputs down: all queued on the stream."""
        self._upload(rows, length)
        self._plan.enqueue(*self._run(rows, length))
        for name, tensor in self._outputs.items():
            self._staged[name].download(self._shape(tensor, rows, length))

    def _upload(self, rows: int, length: int) -> None:
        for name, tensor in self._inputs.items():
            self._staged[name].upload(self._shape(tensor, rows, length))

    def _run(self, rows: int, length: int, again: int = 0) -> tuple[int, dict[str, Shape], dict[str, int]]:
        """What `Plan.enqueue` takes for a step that comes after `again` others."""
        return self._plan.profile_for(length), self._input_shapes(rows, length), self._bound(again)

    def _input_shapes(self, rows: int, length: int) -> dict[str, Shape]:
        return {name: self._shape(tensor, rows, length) for name, tensor in {**self._inputs, **self._past}.items()}

    def _bound(self, again: int) -> dict[str, int]:
        pasts, presents = (self._next, self._caches) if again % 2 else (self._caches, self._next)
        past = {f"past_{name}": address for name, address in pasts.items()}
        return past | {f"present_{name}": address for name, address in presents.items()}

    def _shape(self, tensor: Tensor, rows: int, length: int) -> Shape:
        return resolve(tensor, {"batch": rows, "tokens": length, "cache_length": self._spec.positions})

    def _free_caches(self) -> None:
        self._recordings.clear()
        self._plan.forget()
        self._caches, self._next = {}, {}
        self._rows = 0
        if self._block:
            block, self._block = self._block, 0
            self._cuda.free(block)
