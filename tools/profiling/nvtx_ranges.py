"""Spans as NVTX ranges, which Nsight Systems shows beside the kernels they launched."""

from __future__ import annotations

from ...runtime.spans import Ranges


def nvtx_ranges(backend: str) -> Ranges | None:
    """None on the CPU, and where the package `nvtx` (the [profile] extra) is not installed."""
    if backend == "ort-cpu":
        return None
    try:
        import nvtx
    except ImportError:
        return None
    ranges: Ranges = nvtx
    return ranges
