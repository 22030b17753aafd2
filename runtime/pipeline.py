"""`Pipeline`: classes or captions in, pictures out. The one place where the runtime meets the engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .acceptance import Acceptance, Relaxation
from .condition import CaptionCondition, CaptionProjection, ClassCondition, Prompt, caption_prompts, class_prompts
from .config import DYNAMIC, SamplingConfig, SpeculativeConfig
from .drafting import Drafter, NoDraft, static_drafter
from .dynamic import DynamicDrafter
from .errors import Cancelled, InputError
from .images import from_uint8, to_uint8
from .integers import integer, integers
from .protocols import Engines, ModelInfo
from .result import GenerationResult
from .round import SpeculativeDecoder
from .rules import get_rule
from .sampling import image_generator
from .sequence import Batch, ImageSequence
from .spans import span
from .stats import Progress


class CancelEvent(Protocol):
    """`threading.Event`, or anything with `is_set()`; looked at between two rounds."""

    def is_set(self) -> bool: ...


class Pipeline:
    """A loaded bundle. Use it as a context manager, or call `close()`, to free the engines.

    Threads may share one: their calls run one after the other, because they share the engines' caches.
    """

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def load(
        cls, bundle: str | Path, backend: str = "auto", *, threads: int | None = None, verify: bool = True
    ) -> Pipeline:
        """Open a bundle on a backend.

        Args: backend: "auto" or a name of `engines.backends`. threads: CPU threads of the engines (None: all cores).
        verify: compare every file with the manifest's hash first.
        Raises: BundleError for a missing, damaged or unsuitable bundle; BackendError when the backend can't be used.
        """
        from ..engines.loader import load_engines

        return cls(load_engines(Path(bundle), backend, threads=threads, verify=verify))

    @property
    def info(self) -> ModelInfo:
        """Facts and defaults of the model pair."""
        return self._engines.info

    @property
    def backend(self) -> str:
        """The backend in use."""
        return self._engines.backend

    @property
    def backend_reason(self) -> str:
        """Why it is this one: "asked for", or what `auto` found in the way of the others."""
        return self._engines.backend_reason

    def generate(
        self,
        class_ids: Sequence[int] = (),
        *,
        captions: Sequence[str] = (),
        caption_features: NDArray[np.floating[Any]] | None = None,
        caption_mask: NDArray[Any] | None = None,
        images_per_prompt: int = 1,
        seed: int = 0,
        first_index: int = 0,
        cfg_scale: float | None = None,
        cfg_interval: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        top_p_first: bool | None = None,
        speculative: SpeculativeConfig | None = None,
        batch_size: int = 8,
        progress: Callable[[Progress], None] | None = None,
        cancel: CancelEvent | None = None,
    ) -> GenerationResult:
        """Make `images_per_prompt` pictures of each class or caption, in their order.

        Args:
            class_ids: 0 .. number of classes - 1, for class-conditional models.
            captions: texts, for text-conditional models; or instead of them, encoded elsewhere,
            caption_features, caption_mask: see `condition.caption_prompts`.
            seed, first_index: picture i of the call draws from the generator (seed, first_index + i), so any picture
                can be made again alone.
            cfg_scale, cfg_interval, temperature, top_k, top_p, top_p_first: see `SamplingConfig`; None takes the
                bundle's default.
            speculative: see `SpeculativeConfig`; None takes the bundle's default.
            batch_size: pictures that share passes.
            progress: called after every round. cancel: looked at before every round.
        Raises: InputError for a bad value (before anything runs); Cancelled.
        """
        start = time.perf_counter()
        sampling = self._sampling(cfg_scale, cfg_interval, temperature, top_k, top_p, top_p_first)
        speculative = self._speculative(speculative)
        images_per_prompt = integer("images_per_prompt", images_per_prompt, 1)
        batch_size, seed = integer("batch_size", batch_size, 1), integer("seed", seed, 0)
        first_index, class_ids = integer("first_index", first_index, 0), integers("class_ids", class_ids)
        rules, drafter = self._acceptances(speculative, sampling), self._drafter(speculative, sampling)
        decoder = SpeculativeDecoder(self._engines.target, drafter, sampling, rules)
        with self._exclusive():
            prompts = self._prompts(class_ids, captions, caption_features, caption_mask)
            sequences = self._sequences(prompts, images_per_prompt, seed, first_index, drafter.depth)
            report = _Reporter(sequences, progress, cancel, start)
            for first in range(0, len(sequences), batch_size):
                self._decode_tokens(decoder, sequences[first : first + batch_size], report)
            images = [self._decode_pixels(decoder, sequence) for sequence in sequences]
        return GenerationResult(
            images=images,
            tokens=np.stack([sequence.tokens for sequence in sequences]),
            stats=[sequence.stats for sequence in sequences],
            parameters=self._parameters(sequences, seed, first_index, sampling, speculative),
            lossy=any(rule.lossy for rule in rules),
            images_per_pass=decoder.clock.images_per_pass,
            seconds=time.perf_counter() - start,
        )

    def encode(self, images: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Image tokens [N, n_tokens] of pictures [N, H, W, 3] of the model's size.

        Raises: InputError when the bundle has no image encoder or the pictures have another size.
        """
        encoder = self._engines.image_encoder
        if encoder is None:
            raise InputError("this bundle has no image encoder. Build it again with --image-encoder.")
        images, size = np.asarray(images), (*self.info.image_size, 3)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != size:
            raise InputError(
                f"images are {images.dtype} {list(images.shape)}. Expected uint8 [N, {', '.join(map(str, size))}]: "
                "resize them to what the model generates."
            )
        with self._exclusive():
            return encoder.encode(from_uint8(images))

    def close(self) -> None:
        """Free the engines; calling it twice is fine."""
        with self._lock:
            self._closed = True
            self._engines.close()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """The engines, for one call at a time."""
        with self._lock:
            if self._closed:
                raise InputError("this pipeline is closed. Load the bundle again.")
            yield

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _parameters(
        self,
        sequences: list[ImageSequence],
        seed: int,
        first_index: int,
        sampling: SamplingConfig,
        speculative: SpeculativeConfig,
    ) -> list[dict[str, Any]]:
        """Per image, everything needed to make it again."""
        settings = {"model": self.info.name, "seed": seed, **sampling.model_dump(), **speculative.model_dump()}
        return [
            {**sequence.prompt.parameters, "index": first_index + i, **settings} for i, sequence in enumerate(sequences)
        ]

    def _decode_tokens(self, decoder: SpeculativeDecoder, sequences: list[ImageSequence], report: _Reporter) -> None:
        branches = 2 if decoder.sampling.guided else 1
        batch = Batch(list(sequences), branches)
        # A round may write all nodes of a tree past the image.
        cache_length = self.info.prefix_length + self.info.n_tokens + decoder.drafter.size - 1
        for engine in (decoder.target, decoder.drafter.draft):
            if engine is not None:
                engine.allocate(len(batch) * branches, cache_length)
        report.check_cancel()
        with span("prefill", len(batch)):
            decoder.prefill(batch)
            decoder.retire(batch)
        while len(batch):
            report.check_cancel()
            with span("round", len(batch)):
                decoder.round(batch)
                decoder.retire(batch)
            report.send()

    def _prompts(
        self,
        class_ids: Sequence[int],
        captions: Sequence[str],
        caption_features: NDArray[np.floating[Any]] | None,
        caption_mask: NDArray[Any] | None,
    ) -> list[Prompt]:
        condition, projection = self.info.condition, self._engines.caption_projection
        if isinstance(condition, ClassCondition):
            if caption_features is not None or captions:
                raise InputError("captions are given, and this model takes classes. Give class_ids instead.")
            if not len(class_ids):
                raise InputError("class_ids is empty. Expected at least one class id.")
            return class_prompts(condition, class_ids)
        if len(class_ids):
            raise InputError("class_ids is given, and this model takes captions. Give captions instead.")
        if bool(captions) == (caption_features is not None) or projection is None:
            raise InputError("this model takes captions. Give either captions or caption_features.")
        if caption_features is None:
            return self._text_prompts(condition, projection, captions)
        return caption_prompts(condition, projection, caption_features, caption_mask)

    def _text_prompts(
        self, condition: CaptionCondition, projection: CaptionProjection, captions: Sequence[str]
    ) -> list[Prompt]:
        encoder = self._engines.text_encoder
        if encoder is None:
            raise InputError(
                "this bundle has no text encoder. Build it again with --text-encoder, or give caption_features."
            )
        prompts = caption_prompts(condition, projection, *encoder.encode(captions))
        return [replace(prompt, parameters={"caption": text}) for prompt, text in zip(prompts, captions, strict=True)]

    def _decode_pixels(self, decoder: SpeculativeDecoder, sequence: ImageSequence) -> NDArray[np.uint8]:
        with decoder.clock.phase("decode", [sequence.stats]):
            image: NDArray[np.uint8] = to_uint8(self._engines.image_decoder.decode(sequence.tokens[None]))[0]
            return image

    def _sampling(self, *chosen: float | None) -> SamplingConfig:
        """The bundle's defaults with what is not None instead; `chosen` in the order of the fields."""
        named = zip(SamplingConfig.model_fields, chosen, strict=True)
        return SamplingConfig(
            **{**self.info.sampling.model_dump(), **{name: value for name, value in named if value is not None}}
        )

    def _speculative(self, chosen: SpeculativeConfig | None) -> SpeculativeConfig:
        """What was chosen, or the bundle's default."""
        if not isinstance(chosen, SpeculativeConfig | None):
            raise InputError(f"speculative = {chosen!r}: it must be a SpeculativeConfig.")
        return chosen or self.info.speculative

    def _sequences(
        self, prompts: list[Prompt], images_per_prompt: int, seed: int, first_index: int, depth: int
    ) -> list[ImageSequence]:
        """`images_per_prompt` images of each prompt, each with its own generator. depth: L."""
        repeated = [prompt for prompt in prompts for _ in range(images_per_prompt)]
        return [
            ImageSequence(prompt, self.info.n_tokens, image_generator(seed, first_index + i), depth)
            for i, prompt in enumerate(repeated)
        ]

    def _acceptances(self, speculative: SpeculativeConfig, sampling: SamplingConfig) -> list[Acceptance]:
        rules = get_rule(speculative.rule).acceptances(speculative, self._engines.neighbors)
        # Greedy acceptance is equality with the argmax, whatever the rule.
        return [Relaxation(1.0) for _ in rules] if sampling.greedy else rules

    def _drafter(self, speculative: SpeculativeConfig, sampling: SamplingConfig) -> Drafter:
        if not get_rule(speculative.rule).drafts:
            return NoDraft()
        if self._engines.draft is None:
            raise InputError(
                f"rule = {speculative.rule!r} needs a draft, and this bundle has none. "
                "Use rule 'ar', or build the bundle again with --draft."
            )
        depth, most = speculative.depth, self.info.max_draft_length
        if depth > most:
            name = "draft_length" if speculative.tree in (None, DYNAMIC) else "tree of depth"
            raise InputError(
                f"{name} = {depth}: the bundle's KV cache has {most} spare positions. "
                f"Use at most {most}, or build the bundle again with a larger --max-draft."
            )
        tree = speculative.static_tree
        if tree is None:
            nodes, branches = speculative.tree_nodes, speculative.tree_branches
            return DynamicDrafter(self._engines.draft, depth, sampling, branches, nodes)
        return static_drafter(self._engines.draft, tree, sampling)


class _Reporter:
    """Progress and cancellation of one call."""

    def __init__(
        self,
        sequences: list[ImageSequence],
        progress: Callable[[Progress], None] | None,
        cancel: CancelEvent | None,
        start: float,
    ) -> None:
        self._sequences, self._progress, self._cancel, self._start = sequences, progress, cancel, start

    def check_cancel(self) -> None:
        if self._cancel is not None and self._cancel.is_set():
            done = sum(sequence.emitted for sequence in self._sequences)
            raise Cancelled(f"cancelled after {done} of {sum(len(s.tokens) for s in self._sequences)} image tokens")

    def send(self) -> None:
        if self._progress is None:
            return
        self._progress(
            Progress(
                images_done=sum(not sequence.remaining for sequence in self._sequences),
                images_total=len(self._sequences),
                tokens_done=sum(sequence.emitted for sequence in self._sequences),
                tokens_total=sum(len(sequence.tokens) for sequence in self._sequences),
                target_passes=sum(sequence.stats.target_passes for sequence in self._sequences),
                seconds=time.perf_counter() - self._start,
            )
        )
