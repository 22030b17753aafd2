"""Captions to text features: tokenizer and text encoder of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.captions import clean_caption
from ..runtime.errors import BackendError
from .ort import open_session


class OrtTextEncoder:
    """Loaded when the first caption comes: it is several times larger than the target."""

    def __init__(self, path: Path, tokenizer: Path, length: int, threads: int | None = None) -> None:
        self._path, self._tokenizer_path, self._length, self._threads = path, tokenizer, length, threads

    def encode(self, captions: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features [N, length, C] and mask [N, length], padded on the right; longer captions are cut."""
        encoded = self._tokenizer.encode_batch([clean_caption(caption) for caption in captions])
        tokens = np.array([item.ids for item in encoded], dtype=np.int64)
        mask = np.array([item.attention_mask for item in encoded], dtype=np.bool_)
        features: NDArray[np.float32] = self._session.run(None, {"tokens": tokens, "mask": mask})[0]
        return features, mask

    def close(self) -> None:
        self.__dict__.pop("_session", None)

    @cached_property
    def _session(self) -> Any:
        return open_session(self._path, self._threads)

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise BackendError(
                "encoding captions needs tokenizers, which is not installed. Install it "
                "(pip install 'coolsd-trt[text]'), or encode the captions elsewhere and give caption_features."
            ) from None
        tokenizer = Tokenizer.from_file(str(self._tokenizer_path))
        tokenizer.enable_truncation(self._length)
        tokenizer.enable_padding(length=self._length, pad_id=0, pad_token="<pad>")
        return tokenizer
