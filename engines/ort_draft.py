"""A draft on onnxruntime: step by step, or a whole chain in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.config import SamplingConfig
from ..runtime.errors import BackendError
from ..runtime.protocols import ChainInput, ChainOutput
from ..runtime.spans import span
from ..runtime.warping import LEAST_TEMPERATURE
from .manifest import TransformerSpec
from .ort import Bound, OrtTransformer, Placement


class OrtDraft(OrtTransformer):
    """`OrtTransformer` that can also run chains (`export.graph.draft_chain`) on the same caches.

    Each graph holds the weights once more, so a session is opened when it is first asked for, and only the last chain's
    is kept. The one for chains of `expected` tokens is opened at once: opening takes more memory than the session
    keeps, and later there is less of it. chain_placement: where chains run, if not where steps do. steps: what
    `OrtTransformer` is made with.
    """

    def __init__(
        self,
        path: Path,
        spec: TransformerSpec,
        chains: Sequence[Path],
        expected: int | None = None,
        chain_placement: Placement | None = None,
        **steps: Any,
    ) -> None:
        self._chains, self._chain_placement = list(chains), chain_placement
        self._chain_session: Any = None
        self._chain_length = 0
        self._chain_bound: dict[tuple[int, int, int], Bound] = {}
        self._results: dict[int, ChainOutput] = {}
        super().__init__(path, spec, lazy=True, **steps)
        if expected is not None and expected <= len(self._chains):
            self._open_chain(expected)

    @property
    def longest_chain(self) -> int:
        return len(self._chains)

    def samples(self, sampling: SamplingConfig) -> bool:
        """Not with top-p, which would need a sort of the vocabulary for every token."""
        return sampling.top_p == 1

    def chain(self, chain: ChainInput) -> ChainOutput:
        length, images = chain.uniforms.shape
        if length != self._chain_length:
            self._open_chain(length)
        rows, tokens = chain.input_ids.shape
        bound = self._chain_bound.get((rows, tokens, images)) or self._bind_chain(rows, tokens, images)
        with span("copies"):
            _fill(bound.inputs, chain, self._spec.vocab_size)
        try:
            with span("engine"):
                self._chain_session.run_with_iobinding(bound.binding)
        except Exception as error:  # onnxruntime raises bare pybind exceptions
            raise BackendError(f"onnxruntime failed in a chain of {length} tokens on {rows} rows: {error}") from None
        return self._results[images]

    def close(self) -> None:
        super().close()
        self._close_chain()

    def _free_caches(self) -> None:
        self._chain_bound.clear()
        super()._free_caches()

    def _open_chain(self, length: int) -> None:
        self._close_chain()
        placement = self._chain_placement or self._placement
        self._chain_session = self._open_session(self._chains[length - 1], placement=placement)
        self._chain_length = length

    def _close_chain(self) -> None:
        self._chain_bound.clear()
        self._results.clear()
        self._chain_session, self._chain_length = None, 0

    def _bind_chain(self, rows: int, tokens: int, images: int) -> Bound:
        length, spec = self._chain_length, self._spec
        result = self._results.setdefault(
            images,
            ChainOutput(np.zeros((length, images), dtype=np.int64), np.zeros((length, images, spec.vocab_size))),
        )
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": np.zeros((rows, tokens), dtype=np.int64),
            "features": np.zeros((rows, tokens, spec.hidden_size), dtype=np.float32),
            "write_indices": np.zeros(rows, dtype=np.int64),
            "counts": np.zeros(rows, dtype=np.int64),
            "image_of_row": np.arange(rows) // (rows // images),
            "uniforms": np.zeros((length, images)),
            "cond_rows": np.arange(images) * (rows // images),
            "uncond_rows": np.zeros((length, images), dtype=np.int64),
            "cfg_scale": np.zeros((), dtype=np.float32),
            "temperature": np.zeros(()),
            "greedy": np.zeros((), dtype=np.bool_),
            "top_k": np.zeros((), dtype=np.int64),
        }
        outputs: dict[str, NDArray[Any]] = {}
        for k in range(length):
            outputs |= {f"token_{k + 1}": result.tokens[k], f"q_{k + 1}": result.q[k]}
        bound = Bound(inputs, outputs, self._chain_session.io_binding())
        bound.bind_buffers()
        # One buffer takes every stage of a cache, so none of the chain's steps copies it.
        self._bind_caches(bound.binding, rows, [f"_{k + 1}" for k in range(length)])
        return self._chain_bound.setdefault((rows, tokens, images), bound)


def _fill(inputs: dict[str, NDArray[Any]], chain: ChainInput, vocab: int) -> None:
    rows, images, sampling = len(chain.input_ids), chain.uniforms.shape[1], chain.sampling
    inputs["input_ids"][...] = chain.input_ids
    inputs["features"][...] = chain.features
    inputs["write_indices"][...] = chain.lengths
    inputs["counts"][...] = chain.counts
    inputs["uniforms"][...] = chain.uniforms
    # A token that is not guided has the conditional row as both of its rows, which is exact.
    inputs["uncond_rows"][...] = inputs["cond_rows"] + chain.guided * (rows // images - 1)
    inputs["cfg_scale"][...] = sampling.cfg_scale
    inputs["greedy"][...] = sampling.greedy
    inputs["temperature"][...] = 1.0 if sampling.greedy else max(sampling.temperature, LEAST_TEMPERATURE)
    inputs["top_k"][...] = sampling.top_k if sampling.top_k < vocab else 0
