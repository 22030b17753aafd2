"""What a pipeline should hold, and what the process holds."""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path

from ...engines.manifest import Manifest, TransformerSpec


def weight_bytes(manifest: Manifest) -> dict[str, int]:
    """By part, the size of its graph's files."""
    return {name: sum(record.size for record in part.files) for name, part in manifest.parts().items()}


def bytes_read(spec: TransformerSpec, embedding_rows: int) -> int:
    """Bytes of weights one pass has to see on a CPU: all but the embedding table, of which it takes a few rows.

    Weights in fp16 count four bytes: onnxruntime has no such products there, and widens them when it loads a graph.
    """
    table = embedding_rows * spec.hidden_size * spec.cache_itemsize
    stored = sum(record.size for record in spec.files) - table
    return 2 * stored if spec.precision == "fp16" else stored


def cache_bytes(spec: TransformerSpec, rows: int, length: int) -> int:
    """Keys and values of `rows` sequences of `length` positions."""
    shape = (2 * spec.layers, rows, spec.kv_heads, length, spec.head_dim)
    return math.prod(shape) * spec.cache_itemsize


def resident() -> tuple[int, int]:
    """Bytes this process has resident: now, and at most so far."""
    status = Path("/proc/self/status")
    if not status.is_file():  # not Linux: the peak stands in for both
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return peak, peak
    # Not `ru_maxrss`: there it begins with what the parent had when it started this process.
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak
