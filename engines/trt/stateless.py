"""Graphs without a cache on TensorRT, one picture at a time: the image decoder and the caption projection."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runtime.spans import span
from ..cuda import Cuda
from ..manifest import GraphSpec
from .clock import GpuClock
from .plan import Plan
from .profiles import resolve
from .staging import Staging


class _TrtGraph:
    """Buffers are made once: every run has batch 1."""

    def __init__(self, cuda: Cuda, plan: Plan, spec: GraphSpec) -> None:
        self._cuda, self._plan, self._clock = cuda, plan, GpuClock(cuda)
        self._inputs = {tensor.name: resolve(tensor, {"batch": 1}) for tensor in spec.inputs}
        self._outputs = {tensor.name: resolve(tensor, {"batch": 1}) for tensor in spec.outputs}
        self._staged = {
            tensor.name: Staging(cuda, tensor.name, tensor.dtype) for tensor in (*spec.inputs, *spec.outputs)
        }

    def _run(self, **inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Outputs are views that the next run overwrites."""
        shapes = {**self._inputs, **self._outputs}
        moved = [name for name, staged in self._staged.items() if staged.reserve(shapes[name])]
        self._plan.bind({name: self._staged[name].address for name in moved})
        with span("copies"):
            for name, values in inputs.items():
                self._staged[name].view(self._inputs[name])[...] = values
        with span("engine"):
            self._clock.start()
            for name in inputs:
                self._staged[name].upload(self._inputs[name])
            self._plan.enqueue(0, self._inputs)
            for name, shape in self._outputs.items():
                self._staged[name].download(shape)
            self._clock.stop()
            self._cuda.synchronize()
            self._clock.read()
        return {name: self._staged[name].view(shape) for name, shape in self._outputs.items()}

    def close(self) -> None:
        """Calling it twice is fine."""
        self._clock.close()
        for staging in self._staged.values():
            staging.close()
        self._plan.close()


class TrtImageDecoder(_TrtGraph):
    """The graph from codes to pixels."""

    def decode(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """[N, rows * columns] int64 -> [N, 3, height, width] float32."""
        return np.concatenate([self._run(codes=row[None])["pixels"].copy() for row in tokens])


class TrtCaptionProjection(_TrtGraph):
    """The graph from text features to the target's embeddings."""

    def project(self, features: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """[N, slots, feature_size] -> [N, slots, H], and [slots, H] of the unconditional branch."""
        outputs = [{k: v.copy() for k, v in self._run(caption=caption[None]).items()} for caption in features]
        return np.concatenate([output["conditional"] for output in outputs]), outputs[0]["unconditional"]
