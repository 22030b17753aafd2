"""`x @ W.T`, the one operation whose weights have a precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...engines.manifest import PrecisionName
from ..weights import Array
from .builder import GraphBuilder, fp32, onnx_type

# (graph, x [..., in], name, weight [out, in], name of the result or None) -> [..., out], both of the graph's
# float type.
Linear = Callable[[GraphBuilder, str, str, Array, str | None], str]


def linear(g: GraphBuilder, x: str, name: str, weight: Array, named: str | None = None) -> str:
    """`x @ weight.T` for weight [out, in], in the graph's precision."""
    return PRECISIONS[g.precision](g, x, name, weight, named)


def quantise_rows(weight: Array) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """[out, in] -> int8 of that shape, and [out] float32 scales: symmetric, one scale for each output channel."""
    value = fp32(weight)
    scale = np.maximum(np.abs(value).max(axis=1), np.float32(1e-12)) / np.float32(127)
    return np.rint(value / scale[:, None]).astype(np.int8), scale


def _float(g: GraphBuilder, x: str, name: str, weight: Array, named: str | None) -> str:
    return g.op("MatMul", x, g.weight(name, g.real(weight).T), named=named)


def _int8(g: GraphBuilder, x: str, name: str, weight: Array, named: str | None) -> str:
    """Integer product of int8 weights and activations. Every token has a scale of its own, so a token's result depends
    neither on the batch nor on how many tokens share the pass: verification and drafting see the same numbers."""
    codes, scales = quantise_rows(weight)
    peak = g.op("Max", g.op("ReduceMax", g.op("Abs", x), g.ints(-1), keepdims=1), g.scalar(1e-12))
    step = g.op("Mul", peak, g.scalar(1 / 127))
    rounded = g.op("Cast", g.op("Round", g.op("Div", x, step)), to=onnx_type(np.int8))
    product = g.op("MatMulInteger", rounded, g.weight(name, codes.T))
    scaled = g.op("Mul", g.op("Cast", product, to=onnx_type(np.float32)), step)
    return g.op("Mul", scaled, g.weight(f"{name}.scale", scales), named=named)


PRECISIONS: dict[PrecisionName, Linear] = {"fp32": _float, "fp16": _float, "int8": _int8}
