"""Bundle + backend -> the engines a `Pipeline` drives."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from ..runtime.condition import CaptionProjection
from ..runtime.protocols import CachedTransformer, ImageDecoder, ModelInfo
from .backends import Backend, choose_backend
from .bundle import Bundle
from .ort import OrtOpener
from .ort_cuda import OrtCudaOpener
from .trt.opener import TrtOpener

Opener = OrtOpener | OrtCudaOpener | TrtOpener


class LoadedEngines:
    """Target, draft and image decoder of one bundle on one backend."""

    def __init__(self, bundle: Bundle, backend: Backend, opener: Opener) -> None:
        manifest = bundle.manifest
        self.info: ModelInfo = bundle.info
        self.backend, self.backend_reason = backend.name, backend.reason
        self.draft: CachedTransformer | None = None
        self.caption_projection: CaptionProjection | None = None
        # Frees what was opened, last first, also when a later part can't be.
        with ExitStack() as stack:
            stack.callback(opener.close)
            self.target: CachedTransformer = stack.enter_context(closing(opener.transformer("target", manifest.target)))
            if manifest.draft is not None:
                self.draft = stack.enter_context(closing(opener.transformer("draft", manifest.draft)))
            decoder = opener.image_decoder(manifest.image_decoder)
            self.image_decoder: ImageDecoder = stack.enter_context(closing(decoder))
            if manifest.caption_projection is not None:
                projection = opener.caption_projection(manifest.caption_projection)
                self.caption_projection = stack.enter_context(closing(projection))
            self._open = stack.pop_all()

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
        return TrtOpener(bundle, chosen.trt, chosen.engines, verify)
    return OrtCudaOpener(bundle, threads) if chosen.name == "ort-cuda" else OrtOpener(bundle, threads)
