"""The parts of a bundle as TensorRT engines, on one stream."""

from __future__ import annotations

from typing import Any

from ..bundle import Bundle
from ..cuda import Cuda
from ..manifest import EngineSet, GraphSpec, TextEncoderSpec, TransformerSpec
from ..ort import OrtImageEncoder
from ..ort_opener import OrtOpener
from ..text import OrtTextEncoder
from .draft import TrtDraft
from .plan import Plan
from .plans import check_plans
from .profiles import SAMPLER
from .stateless import TrtCaptionProjection, TrtImageDecoder
from .transformer import TrtTransformer


class TrtOpener:
    """Opens parts from the plans that fit this machine. Files are checked before they are deserialised.
    Parts without plans are left to onnxruntime on the CPU.

    Raises: BundleError for a missing, damaged or wrong plan; BackendError when the GPU has no room.
    """

    def __init__(self, bundle: Bundle, trt: Any, engines: EngineSet, threads: int | None, verify: bool) -> None:
        self._bundle, self._trt, self._engines = bundle, trt, engines
        check_plans(bundle, engines, verify=verify)
        self._cpu = OrtOpener(bundle, threads)
        self._cuda = Cuda()

    def transformer(self, part: str, spec: TransformerSpec) -> TrtTransformer:
        plan, max_batch, manifest = self._plan(part, spec), self._engines.max_batch, self._bundle.manifest
        if part != "draft" or manifest.draft_sampler is None:
            return TrtTransformer(self._cuda, plan, spec, max_batch)
        try:
            sampler = self._plan(SAMPLER, manifest.draft_sampler)
        except BaseException:
            plan.close()
            raise
        longest = manifest.max_draft_length
        return TrtDraft(self._cuda, plan, spec, max_batch, sampler, manifest.draft_sampler, longest)

    def image_decoder(self, spec: GraphSpec) -> TrtImageDecoder:
        return TrtImageDecoder(self._cuda, self._plan("image decoder", spec), spec)

    def image_encoder(self, spec: GraphSpec) -> OrtImageEncoder:
        return self._cpu.image_encoder(spec)

    def caption_projection(self, spec: GraphSpec) -> TrtCaptionProjection:
        return TrtCaptionProjection(self._cuda, self._plan("caption projection", spec), spec)

    def text_encoder(self, spec: TextEncoderSpec) -> OrtTextEncoder:
        return self._cpu.text_encoder(spec)

    def close(self) -> None:
        self._cuda.close()

    def _plan(self, part: str, spec: GraphSpec) -> Plan:
        record = self._engines.plans[part]
        return Plan(self._trt, self._cuda, self._bundle.file(record.file), spec, record.profiles)
