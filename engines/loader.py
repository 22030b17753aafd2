"""Bundle + backend -> the engines a `Pipeline` drives."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..runtime.condition import CaptionProjection
from ..runtime.protocols import CachedTransformer, ImageDecoder, ImageEncoder, ModelInfo, TextEncoder
from .backends import Backend, choose_backend
from .bundle import Bundle
from .neighbors import read_neighbors
from .ort_cuda import OrtCudaOpener
from .ort_opener import OrtOpener
from .ort_trt import OrtTrtOpener
from .trt.opener import TrtOpener

Opener = OrtOpener | OrtCudaOpener | TrtOpener


class _Closeable(Protocol):
    def close(self) -> None: ...


Part = TypeVar("Part", bound=_Closeable)


class LoadedEngines:
    """The engines of one bundle on one backend; parts the bundle lacks are None."""

    def __init__(self, bundle: Bundle, backend: Backend, opener: Opener) -> None:
        m = bundle.manifest
        self.info: ModelInfo = bundle.info
        self.backend, self.backend_reason = backend.name, backend.reason
        self.draft: CachedTransformer | None = None
        self.image_encoder: ImageEncoder | None = None
        self.caption_projection: CaptionProjection | None = None
        self.text_encoder: TextEncoder | None = None
        self._neighbors = bundle.file(m.neighbors) if m.neighbors else None
        # Frees what was opened, last first, also when a later part can't be.
        with ExitStack() as stack:

            def kept(part: Part) -> Part:
                return stack.enter_context(closing(part))

            stack.callback(opener.close)
            # The draft first: what opening it takes for a while is free again before the target needs most.
            if m.draft is not None:
                self.draft = kept(opener.transformer("draft", m.draft))
            self.target: CachedTransformer = kept(opener.transformer("target", m.target))
            self.image_decoder: ImageDecoder = kept(opener.image_decoder(m.image_decoder))
            if m.image_encoder is not None:
                self.image_encoder = kept(opener.image_encoder(m.image_encoder))
            if m.caption_projection is not None:
                self.caption_projection = kept(opener.caption_projection(m.caption_projection))
            if m.text_encoder is not None:
                self.text_encoder = kept(opener.text_encoder(m.text_encoder))
            self._open = stack.pop_all()

    @cached_property
    def neighbors(self) -> NDArray[np.uint16] | None:
        """[V, K], mapped from the bundle when first asked for."""
        return read_neighbors(self._neighbors, self.info.vocab_size) if self._neighbors else None

    def close(self) -> None:
        self._open.close()


def load_engines(path: Path, backend: str, *, threads: int | None = None, verify: bool = True) -> LoadedEngines:
    """Open the bundle, choose the backend, load the engines.

    Raises: BundleError before anything is deserialised; BackendError when the backend can't be used.
    """
    bundle = Bundle.open(path, verify=verify)
    chosen = choose_backend(backend, bundle.manifest)
    return LoadedEngines(bundle, chosen, _opener(bundle, chosen, threads, verify))


def _opener(bundle: Bundle, chosen: Backend, threads: int | None, verify: bool) -> Opener:
    if chosen.engines is not None:
        return TrtOpener(bundle, chosen.trt, chosen.engines, threads, verify)
    openers = {"ort-trt": OrtTrtOpener, "ort-cuda": OrtCudaOpener, "ort-cpu": OrtOpener}
    return openers[chosen.name](bundle, threads)
