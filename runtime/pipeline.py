"""`Pipeline`: classes or captions in, pictures out. The one place where the runtime meets the engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .condition import ClassCondition, Prompt, caption_prompts, class_prompts
from .config import SamplingConfig, SpeculativeConfig
from .errors import Cancelled, InputError
from .images import to_uint8
from .protocols import Engines, ModelInfo
from .result import GenerationResult
from .round import SpeculativeDecoder
from .rules import get_rule
from .sampling import image_generator
from .sequence import Batch, ImageSequence
from .stats import ImageStats, Progress


class CancelEvent(Protocol):
    """`threading.Event`, or anything with `is_set()`; looked at between two rounds."""

    def is_set(self) -> bool: ...


class Pipeline:
    """A loaded bundle. Use it as a context manager, or call `close()`, to free the engines."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

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
        speculative: SpeculativeConfig | None = None,
        batch_size: int = 8,
        progress: Callable[[Progress], None] | None = None,
        cancel: CancelEvent | None = None,
    ) -> GenerationResult:
        """Make `images_per_prompt` pictures of each class or caption, in their order.

        Args:
            class_ids: 0 .. number of classes - 1, for class-conditional models.
            caption_features, caption_mask: for text-conditional models, see `condition.caption_prompts`.
            seed, first_index: picture i of the call draws from the generator (seed, first_index + i), so any picture
                can be made again alone.
            cfg_scale, cfg_interval, temperature, top_k, top_p: see `SamplingConfig`; None takes the bundle's default.
            speculative: see `SpeculativeConfig`; None takes the bundle's default.
            batch_size: pictures that share passes.
            progress: called after every round. cancel: looked at before every round.
        Raises: InputError for a bad value (before anything runs); Cancelled.
        """
        start = time.perf_counter()
        chosen = {
            "cfg_scale": cfg_scale,
            "cfg_interval": cfg_interval,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        defaults = self.info.sampling.model_dump()
        sampling = SamplingConfig(**{**defaults, **{k: v for k, v in chosen.items() if v is not None}})
        speculative = speculative or self.info.speculative
        _check_call(images_per_prompt=(images_per_prompt, 1), batch_size=(batch_size, 1))
        _check_call(seed=(seed, 0), first_index=(first_index, 0))
        omega = self._schedule(speculative, sampling)
        prompts = self._prompts(class_ids, caption_features, caption_mask)
        sequences = [
            ImageSequence(prompt, self.info.n_tokens, image_generator(seed, first_index + i), len(omega))
            for i, prompt in enumerate(prompt for prompt in prompts for _ in range(images_per_prompt))
        ]
        decoder = SpeculativeDecoder(self._engines.target, self._engines.draft if len(omega) else None, sampling, omega)
        report = _Reporter(sequences, progress, cancel, start)
        for first in range(0, len(sequences), batch_size):
            self._decode_tokens(decoder, sequences[first : first + batch_size], report)
        tokens = np.stack([sequence.tokens for sequence in sequences])
        stats = [sequence.stats for sequence in sequences]
        images = [self._decode_pixels(decoder, row, s) for row, s in zip(tokens, stats, strict=True)]
        return GenerationResult(
            images=images,
            tokens=tokens,
            stats=stats,
            parameters=[
                {
                    "model": self.info.name,
                    **sequence.prompt.parameters,
                    "seed": seed,
                    "index": first_index + i,
                    **sampling.model_dump(),
                    **speculative.model_dump(),
                }
                for i, sequence in enumerate(sequences)
            ],
            lossy=bool((omega > 1).any()),
            seconds=time.perf_counter() - start,
        )

    def close(self) -> None:
        """Free the engines; calling it twice is fine."""
        self._engines.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decode_tokens(self, decoder: SpeculativeDecoder, sequences: list[ImageSequence], report: _Reporter) -> None:
        branches = 2 if decoder.sampling.guided else 1
        batch = Batch(list(sequences), branches)
        # A round's padded tokens may write up to L positions past the image.
        cache_length = self.info.prefix_length + self.info.n_tokens + len(decoder.omega)
        for engine in (decoder.target, decoder.draft):
            if engine is not None:
                engine.allocate(len(batch) * branches, cache_length)
        report.check_cancel()
        decoder.prefill(batch)
        decoder.retire(batch)
        while len(batch):
            report.check_cancel()
            decoder.round(batch)
            decoder.retire(batch)
            report.send()

    def _prompts(
        self,
        class_ids: Sequence[int],
        caption_features: NDArray[np.floating[Any]] | None,
        caption_mask: NDArray[Any] | None,
    ) -> list[Prompt]:
        condition, projection = self.info.condition, self._engines.caption_projection
        if isinstance(condition, ClassCondition):
            if caption_features is not None:
                raise InputError("caption_features is given, and this model takes classes. Give class_ids instead.")
            if not len(class_ids):
                raise InputError("class_ids is empty. Expected at least one class id.")
            return class_prompts(condition, class_ids)
        if len(class_ids):
            raise InputError("class_ids is given, and this model takes captions. Give caption_features instead.")
        if caption_features is None or projection is None:
            raise InputError("caption_features is missing. Expected the encoded captions: this model takes captions.")
        return caption_prompts(condition, projection, caption_features, caption_mask)

    def _decode_pixels(
        self, decoder: SpeculativeDecoder, tokens: NDArray[np.int64], stats: ImageStats
    ) -> NDArray[np.uint8]:
        with decoder.clock.phase("decode", [stats]):
            return to_uint8(self._engines.image_decoder.decode(tokens[None]))[0]

    def _schedule(self, speculative: SpeculativeConfig, sampling: SamplingConfig) -> NDArray[np.float64]:
        omega = get_rule(speculative.rule).schedule(speculative)
        if len(omega) and self._engines.draft is None:
            raise InputError(
                f"rule = {speculative.rule!r} needs a draft, and this bundle has none. "
                "Use rule 'ar', or build the bundle again with --draft."
            )
        if len(omega) > self.info.max_draft_length:
            raise InputError(
                f"draft_length = {len(omega)}: the bundle's KV cache has {self.info.max_draft_length} spare positions. "
                f"Use at most {self.info.max_draft_length}, or build the bundle again with a larger --max-draft."
            )
        # Greedy acceptance is equality with the argmax: the schedule does not apply.
        return np.ones_like(omega) if sampling.greedy else omega


def _check_call(**least: tuple[int, int]) -> None:
    """Every option is (value, minimum)."""
    for name, (value, minimum) in least.items():
        if value < minimum:
            raise InputError(f"{name} = {value}: it must be at least {minimum}.")


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
