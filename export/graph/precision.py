"""Number formats of a graph: how its matrices are stored, and in what the rest is computed."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ...engines.manifest import PrecisionName, QuantisationName
from ...runtime.errors import InputError

BLOCK_SIZES = (32, 128)
FLOAT_TYPES: dict[PrecisionName, type] = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
# The first opset with 4-bit tensors and blocks of scales.
BLOCKS_SINCE = 21


@dataclass(frozen=True)
class Precision:
    """name: of the matrices. tensorrt: made for it, where quantised matrices are widened to fp16 before each product;
    onnxruntime's CPU is fastest in float32, with integer products for int8. block_size: int4 weights that share a
    scale. Raises: InputError for what no backend runs."""

    name: PrecisionName = "fp32"
    tensorrt: bool = False
    block_size: int = 32

    def __post_init__(self) -> None:
        if self.name not in PRECISIONS:
            raise InputError(f"precision = {self.name!r}. Expected one of: {', '.join(PRECISIONS)}.")
        if self.name == "bf16" and not self.tensorrt:
            raise InputError(
                "--precision bf16: onnxruntime has no bfloat16 kernels on the CPU. Use fp16 (as large) or fp32 there, "
                "or build for TensorRT with --backend trt-rtx."
            )
        if self.block_size not in BLOCK_SIZES:
            raise InputError(f"--block-size {self.block_size}: expected {' or '.join(map(str, BLOCK_SIZES))}.")

    @property
    def float_type(self) -> type:
        """NumPy type of caches and of what passes between layers."""
        return FLOAT_TYPES.get(self.name, np.float16 if self.tensorrt else np.float32)

    @property
    def quantisation(self) -> QuantisationName:
        if self.name in FLOAT_TYPES:
            return "none"
        return "dynamic" if self.name == "int8" and not self.tensorrt else "weight-only"

    @property
    def bits(self) -> float:
        """Of a weight in a matrix, scales included."""
        scale = np.dtype(self.float_type).itemsize * 8
        return {"int8": 8.0, "int4": 4 + scale / self.block_size}.get(self.name, scale)

    def of_matrix(self, width: int, head: bool) -> PrecisionName:
        """How a matrix of that many inputs is stored. In int4 graphs two kinds are int8: the head, whose errors reach
        the logits as they are (it halves int4's cost for a few percent of size), and, for TensorRT, which tells the
        block size from the number of scales, what does not divide into blocks; released models have none of those."""
        if self.name == "int4" and (head or (self.tensorrt and width % self.block_size)):
            return "int8"
        return self.name

    def opset(self, least: int) -> int:
        """Of a graph that needs at least that one."""
        return max(least, BLOCKS_SINCE) if self.name == "int4" else least


PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "fp16", "bf16", "int8", "int4")
FP32 = Precision()
