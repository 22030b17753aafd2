"""`x @ W.T`, the one operation whose weights have a precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...engines.manifest import PrecisionName
from ..weights import Array
from .builder import GraphBuilder, onnx_type
from .quantise import quantise_blocks, quantise_rows


def linear(g: GraphBuilder, x: str, name: str, weight: Array, named: str | None = None, head: bool = False) -> str:
    """`x @ weight.T` for weight [out, in], in the graph's precision. head: the last one of the graph."""
    if g.precision.quantisation == "dynamic":
        return _dynamic(g, x, name, weight, named)
    kind = g.precision.of_matrix(weight.shape[1], head)
    return g.op("MatMul", x, MATRICES[kind](g, name, weight), named=named)


def _float(g: GraphBuilder, name: str, weight: Array) -> str:
    return g.weight(name, g.real(weight).T)


def _int8(g: GraphBuilder, name: str, weight: Array) -> str:
    codes, scales = quantise_rows(weight, g.float_type)
    return g.op("DequantizeLinear", g.weight(name, codes.T), g.scales(f"{name}.scale", scales), axis=1)


def _int4(g: GraphBuilder, name: str, weight: Array) -> str:
    """onnxruntime's CPU fuses it with the product to `MatMulNBits`, which computes in blocks of int8 activations; it
    wants the blocks along axis 0. TensorRT reads it as it is."""
    size = g.precision.block_size
    codes, scales = quantise_blocks(weight, size, g.float_type)
    return g.op("DequantizeLinear", g.int4(name, codes.T), g.scales(f"{name}.scale", scales.T), axis=0, block_size=size)


# [out, in] -> [in, out] of the graph's float type.
MATRICES: dict[PrecisionName, Callable[[GraphBuilder, str, Array], str]] = {
    "fp32": _float,
    "fp16": _float,
    "bf16": _float,
    "int8": _int8,
    "int4": _int4,
}


def _dynamic(g: GraphBuilder, x: str, name: str, weight: Array, named: str | None) -> str:
    """Integer product of int8 weights and activations. Every token has a scale of its own, so a token's result depends
    neither on the batch nor on how many tokens share the pass: verification and drafting see the same numbers."""
    codes, scales = quantise_rows(weight)
    peak = g.op("Max", g.op("ReduceMax", g.op("Abs", x), g.ints(-1), keepdims=1), g.scalar(1e-12))
    step = g.op("Mul", peak, g.scalar(1 / 127))
    # Moved to 1..255: onnxruntime has fast kernels for unsigned times signed bytes, and none for signed ones.
    rounded = g.op("Cast", g.op("Add", g.op("Round", g.op("Div", x, step)), g.scalar(128)), to=onnx_type(np.uint8))
    product = g.op("MatMulInteger", rounded, g.weight(name, codes.T), g.constant(np.array(128, dtype=np.uint8)))
    scaled = g.op("Mul", g.op("Cast", product, to=onnx_type(np.float32)), step)
    return g.op("Mul", scaled, g.scales(f"{name}.scale", scales), named=named)
