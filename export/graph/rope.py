"""LlamaGen's 2-D rotary position embedding: the table, and its application from primitive operators."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .builder import GraphBuilder


def rope_angles(grid: tuple[int, int], head_dim: int, base: float) -> NDArray[np.float64]:
    """[rows * columns, head_dim / 2] rotation angle of every channel pair, cells in raster order.

    The first half of the pairs turns by the cell's row, the second by its column, with frequencies
    `base^(-2j/half)`, half = head_dim / 2.
    """
    half = head_dim // 2
    frequencies = base ** (-np.arange(0, half, 2)[: half // 2] / half)
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    return np.concatenate([np.outer(rows, frequencies), np.outer(columns, frequencies)], axis=1)


def rope_tables(
    grid: tuple[int, int], head_dim: int, zero_rows: int, spare_rows: int, base: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin tables [zero_rows + rows * columns + spare_rows, head_dim / 2] float32.

    LlamaGen's rows of condition tokens are zero vectors (cos = sin = 0), not the identity; spare rows serve padding
    past the image and are zero too.
    """
    angles = rope_angles(grid, head_dim, base)
    padding = ((zero_rows, spare_rows), (0, 0))
    cos, sin = (np.pad(table, padding).astype(np.float32) for table in (np.cos(angles), np.sin(angles)))
    return cos, sin


def split_pairs(weight: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Reorder the output rows [heads * head_dim, ...] of a q or k projection: interleaved pairs (2i, 2i+1) become
    halves (i, i + head_dim/2). Scores are unchanged when q and k are reordered alike, and halves rotate with slices.
    """
    pairs = weight.reshape(weight.shape[0] // head_dim, head_dim // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


def declare_rope(
    g: GraphBuilder, position_ids: str, cos: NDArray[np.float32], sin: NDArray[np.float32]
) -> tuple[str, str]:
    """Look the positions up once per graph. Returns cos, sin [B, 1, S, head_dim / 2]."""
    tables = g.weight("rope_cos", cos), g.weight("rope_sin", sin)
    c, s = (g.op("Unsqueeze", g.op("Gather", table, position_ids), g.ints(1)) for table in tables)
    return c, s


def apply_rope(g: GraphBuilder, x: str, cos: str, sin: str) -> str:
    """Rotate [B, heads, S, D], channels in halves order: (a, b) -> (a cos - b sin, b cos + a sin)."""
    a, b = g.ops("Split", x, outputs=2, axis=3, num_outputs=2)
    turned_a = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
    turned_b = g.op("Add", g.op("Mul", b, cos), g.op("Mul", a, sin))
    return g.op("Concat", turned_a, turned_b, axis=3)
