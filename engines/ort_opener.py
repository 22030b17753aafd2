"""The parts of a bundle on onnxruntime's CPU provider."""

from __future__ import annotations

from .bundle import Bundle
from .manifest import GraphSpec, TextEncoderSpec, TransformerSpec
from .ort import OrtCaptionProjection, OrtImageDecoder, OrtImageEncoder, OrtTransformer
from .text import OrtTextEncoder


class OrtOpener:
    """Every part; the GPU backends leave to it those that run once a picture or less."""

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        self._bundle, self._threads = bundle, threads

    def transformer(self, part: str, spec: TransformerSpec) -> OrtTransformer:
        return OrtTransformer(self._bundle.file(spec.files[0]), spec, self._threads)

    def image_decoder(self, spec: GraphSpec) -> OrtImageDecoder:
        return OrtImageDecoder(self._bundle.file(spec.files[0]), self._threads)

    def image_encoder(self, spec: GraphSpec) -> OrtImageEncoder:
        return OrtImageEncoder(self._bundle.file(spec.files[0]), self._threads)

    def caption_projection(self, spec: GraphSpec) -> OrtCaptionProjection:
        return OrtCaptionProjection(self._bundle.file(spec.files[0]), self._threads)

    def text_encoder(self, spec: TextEncoderSpec) -> OrtTextEncoder:
        tokenizer = self._bundle.file(spec.tokenizer)
        length = self._bundle.manifest.prefix_length
        return OrtTextEncoder(self._bundle.file(spec.files[0]), tokenizer, length, self._threads)

    def close(self) -> None:
        pass
