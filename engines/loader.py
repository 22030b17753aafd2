"""Bundle + backend -> the engines a `Pipeline` drives."""

from __future__ import annotations

from pathlib import Path

from ..runtime.protocols import ModelInfo
from .backends import choose_backend
from .bundle import Bundle
from .ort import OrtCaptionProjection, OrtImageDecoder, OrtTransformer


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
        spec = manifest.caption_projection
        self.caption_projection = OrtCaptionProjection(bundle.file(spec.files[0]), threads) if spec else None

    def close(self) -> None:
        for engine in (self.target, self.draft, self.image_decoder, self.caption_projection):
            if engine is not None:
                engine.close()


def load_engines(path: Path, backend: str, *, threads: int | None = None, verify: bool = True) -> LoadedEngines:
    """Open the bundle, choose the backend, load the engines.

    Raises: BundleError before anything is deserialised; BackendError when the backend can't be used.
    """
    bundle = Bundle.open(path, verify=verify)
    return LoadedEngines(bundle, choose_backend(backend), threads)
