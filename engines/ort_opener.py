"""The parts of a bundle on onnxruntime's CPU provider."""

from __future__ import annotations

from ..runtime.condition import CaptionCondition
from .bundle import Bundle
from .manifest import GraphSpec, TextEncoderSpec, TransformerSpec
from .ort import OrtCaptionProjection, OrtImageDecoder, OrtImageEncoder, OrtTransformer, runs_gqa
from .ort_draft import OrtDraft
from .text import OrtTextEncoder


class OrtOpener:
    """Every part; the GPU backends leave to it those that run once a picture or less."""

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        self._bundle, self._threads = bundle, threads

    def transformer(self, part: str, spec: TransformerSpec) -> OrtTransformer:
        graph = spec.files[0]
        if spec.gqa is not None and runs_gqa() and not (part == "target" and self._sees_ahead):
            graph = spec.gqa
        path = self._bundle.file(graph)
        # Chains attend as the best of the draft's own graphs does.
        if spec.chains and (spec.gqa is None or runs_gqa()):
            chains = [self._bundle.file(chain) for chain in spec.chains]
            return OrtDraft(path, spec, chains, self._expected_chain, threads=self._threads)
        return OrtTransformer(path, spec, self._threads)

    @property
    def _expected_chain(self) -> int | None:
        """Tokens of the chains that the bundle drafts unless told otherwise."""
        default = self._bundle.manifest.speculative
        return default.draft_length if default.tree is None else None

    @property
    def _sees_ahead(self) -> bool:
        """Whether a condition's tokens attend to later ones, which the gqa graphs can't."""
        condition = self._bundle.manifest.condition
        return isinstance(condition, CaptionCondition) and condition.padded_rows == "caption"

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
