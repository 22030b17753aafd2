"""What TensorRT-RTX compiled for this GPU while it ran, kept beside the plan so that the next start need not."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from ...runtime.files import replacing_file

_DIGEST_BYTES = hashlib.sha256().digest_size


class KernelCache:
    """The runtime cache of one engine; its contexts share it. The file holds a sha256 and what it is of: one that is
    damaged is never deserialised, one of another GPU or version TensorRT-RTX refuses; then kernels are compiled again.
    """

    def __init__(self, config: Any, file: Path) -> None:
        self._file, self._stored = file, _read(file)
        self._cache = config.create_runtime_cache()
        if self._stored:
            self._cache.deserialize(self._stored)
        config.set_runtime_cache(self._cache)

    def save(self) -> None:
        """Write what is new. In a bundle that can't be written to nothing is kept, and the next start is slower."""
        content = bytes(memoryview(self._cache.serialize()))
        if content == self._stored:
            return
        with suppress(InputError), replacing_file(self._file) as temporary:
            temporary.write_bytes(hashlib.sha256(content).digest() + content)


def _read(file: Path) -> bytes:
    """What was stored; nothing when the file is missing or damaged."""
    content = file.read_bytes() if file.is_file() else b""
    digest, stored = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return stored if digest == hashlib.sha256(stored).digest() else b""
