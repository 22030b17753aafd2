"""Bundle + backend -> the engines a `Pipeline` drives."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..runtime.protocols import ModelInfo
from .backends import choose_backend
from .bundle import Bundle
from .ort import OrtImageDecoder, OrtTransformer


class LoadedEngines:
    """Target, draft and image decoder of one bundle on one backend."""

    def __init__(self, bundle: Bundle, backend: str, threads: int | None) -> None:
        manifest = bundle.manifest
        self.info: ModelInfo = bundle.info
        self.backend = backend
        self.target = OrtTransformer(bundle.file(manifest.target.files[0]), manifest.target, threads)
        self.draft = (
            OrtTransformer(bundle.file(manifest.draft.files[0]), manifest.draft, threads) if manifest.draft else None
        )
        self.image_decoder = OrtImageDecoder(bundle.file(manifest.image_decoder.files[0]), threads)

        self._neighbors = bundle.file(manifest.neighbors) if manifest.neighbors else None

    @cached_property
    def neighbors(self) -> NDArray[np.uint16] | None:
        """[V, K], mapped from the bundle when first asked for."""
        return np.load(self._neighbors, mmap_mode="r") if self._neighbors else None

    def close(self) -> None:
        for engine in (self.target, self.draft, self.image_decoder):
            if engine is not None:
                engine.close()


def load_engines(path: Path, backend: str, *, threads: int | None = None, verify: bool = True) -> LoadedEngines:
    """Open the bundle, choose the backend, load the engines.

    Raises: BundleError before anything is deserialised; BackendError when the backend can't be used.
    """
    bundle = Bundle.open(path, verify=verify)
    return LoadedEngines(bundle, choose_backend(backend), threads)
