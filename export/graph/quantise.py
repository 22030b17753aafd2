"""Float matrices to integers and scales. Symmetric: zero stays zero, and every backend takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..weights import Array

Codes = NDArray[np.int8]
# Rows are rounded in slices of about so many elements: what is held beside the matrix stays small.
SLICE = 1 << 22
# Below it a scale would be zero in fp16.
LEAST_SCALE = 1e-7
# Codes go from -8 to 7; a block's largest magnitude lies between, so that no weight is off by more than half a step.
PEAK = np.float32(7.5)


def quantise_rows(weight: Array, scale_type: type = np.float32) -> tuple[Codes, NDArray[Any]]:
    """[out, in] -> int8 of that shape, and [out] scales: one for each output channel, codes -127..127."""
    codes = np.empty(weight.shape, dtype=np.int8)
    scales: NDArray[Any] = np.empty(len(weight), dtype=scale_type)
    for rows in _slices(weight):
        value = weight[rows].astype(np.float32)
        scales[rows] = np.maximum(np.abs(value).max(axis=1) / np.float32(127), LEAST_SCALE)
        step = scales[rows].astype(np.float32)[:, None]
        codes[rows] = np.clip(np.rint(value / step), -127, 127)
    return codes, scales


def quantise_blocks(weight: Array, block_size: int, scale_type: type = np.float32) -> tuple[Codes, NDArray[Any]]:
    """[out, in] -> int8 of that shape in -8..7, and [out, ceil(in / block_size)] scales: one for each `block_size`
    neighbouring inputs of an output channel; the last block may be shorter."""
    out, width = weight.shape
    blocks = -(-width // block_size)
    codes = np.empty(weight.shape, dtype=np.int8)
    scales = np.empty((out, blocks), dtype=scale_type)
    for rows in _slices(weight):
        value = np.zeros((len(weight[rows]), blocks * block_size), dtype=np.float32)
        value[:, :width] = weight[rows]
        value = value.reshape(-1, blocks, block_size)
        scales[rows] = np.maximum(np.abs(value).max(axis=-1) / PEAK, LEAST_SCALE)
        step = scales[rows].astype(np.float32)[..., None]
        codes[rows] = np.clip(np.rint(value / step), -8, 7).reshape(len(value), -1)[:, :width]
    return codes, scales


def pack_int4(codes: Codes) -> NDArray[np.uint8]:
    """ONNX's layout of 4-bit tensors: two a byte in C order, the first in the low half."""
    flat = codes.reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.int8(0))
    low, high = flat.view(np.uint8)[::2], flat.view(np.uint8)[1::2]
    return np.bitwise_or(low & np.uint8(0xF), high << np.uint8(4))


def _slices(weight: Array) -> list[slice]:
    rows = max(1, SLICE // weight.shape[1])
    return [slice(start, start + rows) for start in range(0, len(weight), rows)]
