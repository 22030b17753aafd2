"""Bundle + backend -> the engines a `Pipeline` drives."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..runtime.protocols import ModelInfo
from .backends import choose_backend
from .bundle import Bundle
from .manifest import GraphSpec
from .ort import OrtCaptionProjection, OrtImageDecoder, OrtImageEncoder, OrtTransformer
from .text import OrtTextEncoder


class LoadedEngines:
    """The engines of one bundle on one backend; parts the bundle lacks are None."""

    def __init__(self, bundle: Bundle, backend: str, threads: int | None) -> None:
        def path(part: GraphSpec) -> Path:
            return bundle.file(part.files[0])

        m = bundle.manifest
        self.info: ModelInfo = bundle.info
        self.backend = backend
        self.target = OrtTransformer(path(m.target), m.target, threads)
        self.draft = OrtTransformer(path(m.draft), m.draft, threads) if m.draft else None
        self.image_decoder = OrtImageDecoder(path(m.image_decoder), threads)
        self.image_encoder = OrtImageEncoder(path(m.image_encoder), threads) if m.image_encoder else None
        self.caption_projection = (
            OrtCaptionProjection(path(m.caption_projection), threads) if m.caption_projection else None
        )
        self.text_encoder = None
        if m.text_encoder is not None:
            tokenizer = bundle.file(m.text_encoder.tokenizer)
            self.text_encoder = OrtTextEncoder(path(m.text_encoder), tokenizer, m.prefix_length, threads)
        self._neighbors = bundle.file(m.neighbors) if m.neighbors else None

    @cached_property
    def neighbors(self) -> NDArray[np.uint16] | None:
        """[V, K], mapped from the bundle when first asked for."""
        return np.load(self._neighbors, mmap_mode="r") if self._neighbors else None

    def close(self) -> None:
        captions = (self.caption_projection, self.text_encoder)
        for engine in (self.target, self.draft, self.image_decoder, self.image_encoder, *captions):
            if engine is not None:
                engine.close()


def load_engines(path: Path, backend: str, *, threads: int | None = None, verify: bool = True) -> LoadedEngines:
    """Open the bundle, choose the backend, load the engines.

    Raises: BundleError before anything is deserialised; BackendError when the backend can't be used.
    """
    bundle = Bundle.open(path, verify=verify)
    return LoadedEngines(bundle, choose_backend(backend), threads)
