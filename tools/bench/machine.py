"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def machine() -> str:
    """CPU model, cores and the onnxruntime in use, in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return f"{cpu}, {os.cpu_count()} cores, onnxruntime {_onnxruntime()}"


def _onnxruntime() -> str:
    try:
        return version("onnxruntime")
    except PackageNotFoundError:
        return version("onnxruntime-gpu")


def last_level_cache() -> int | None:
    """Bytes of the first core's largest cache; None where the system does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    texts = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    return max((int(text[:-1]) * units[text[-1]] for text in texts if text[-1:] in units), default=None)
