"""Write the cache, attend: the one block of a transformer graph that depends on where it will run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .builder import GraphBuilder


@dataclass(frozen=True)
class CacheIO:
    """Values attention needs: mask [B, 1, S, Smax] bool, write_indices [B], pasts and presents [B, Hkv, Smax, D]."""

    mask: str
    write_indices: str
    past_key: str
    past_value: str
    present_key: str
    present_value: str


# (graph, q [B, H, S, D], k and v [B, Hkv, S, D], cache) -> attended [B, H, S, D]
Attend = Callable[[GraphBuilder, str, str, str, CacheIO], str]


@dataclass(frozen=True)
class Lowering:
    """One way to write the block, and the opset it needs."""

    opset: int
    attend: Attend


def _tensor_scatter(g: GraphBuilder, q: str, k: str, v: str, cache: CacheIO) -> str:
    """Opset 24. TensorRT (>= 10.15) turns TensorScatter into its KV-cache-update layer; onnxruntime writes in place
    when past and present are one buffer. `Attention` scales by 1/sqrt(D) and repeats grouped KV heads itself."""
    keys = g.op("TensorScatter", cache.past_key, k, cache.write_indices, named=cache.present_key, axis=2)
    values = g.op("TensorScatter", cache.past_value, v, cache.write_indices, named=cache.present_value, axis=2)
    return g.op("Attention", q, keys, values, cache.mask)


LOWERINGS: dict[str, Lowering] = {"tensor_scatter": Lowering(24, _tensor_scatter)}


def declare_cache(g: GraphBuilder, layer: int, kv_heads: int, head_dim: int, mask: str, write_indices: str) -> CacheIO:
    """Declare one layer's past inputs and present outputs."""
    shape = ("batch", kv_heads, "cache_length", head_dim)
    names = {f"{when}_{kind}": f"{when}_{kind}_{layer}" for when in ("past", "present") for kind in ("key", "value")}
    g.input(names["past_key"], np.float32, shape)
    g.input(names["past_value"], np.float32, shape)
    g.output(names["present_key"], np.float32, shape)
    g.output(names["present_value"], np.float32, shape)
    return CacheIO(mask, write_indices, **names)
