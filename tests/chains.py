"""A draft's chain in one engine call, held against the same engine drafting step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from coolsd_trt.runtime import SamplingConfig
from coolsd_trt.runtime.condition import ClassCondition, class_prompts
from coolsd_trt.runtime.drafting import FusedDrafter, StaticDrafter
from coolsd_trt.runtime.protocols import ChainDraft, ChainInput, ModelInfo
from coolsd_trt.runtime.sampling import image_generator
from coolsd_trt.runtime.sequence import Batch, ImageSequence
from coolsd_trt.runtime.tree import Tree

SETTINGS: list[dict[str, Any]] = [
    {},
    {"cfg_scale": 1},
    {"cfg_scale": 3, "cfg_interval": 4},
    {"temperature": 0.3},
    {"top_k": 3},
    {"top_k": 100, "temperature": 2},
    {"temperature": 0},
    {"temperature": 0, "cfg_scale": 1},
]


def require_same_drafts(
    draft: ChainDraft, info: ModelInfo, length: int, sampling: SamplingConfig, tolerance: float = 1e-4
) -> None:
    """Both ways draft the same tokens, from the same laws but for a relative `tolerance`, with the same uniforms."""
    limits = [length, max(length - 2, 0), length]
    proposals, uniforms = [], []
    for drafter in (StaticDrafter(draft, Tree.chain(length), sampling), FusedDrafter(draft, length, sampling)):
        draft.allocate(6, min(40, info.prefix_length + info.n_tokens + info.max_draft_length - 1))
        batch = mid_picture(info, sampling)
        # What the first one drafted is to be forgotten.
        proposals.append([proposal for _ in range(3) for proposal in drafter.propose(batch, limits)])
        uniforms.append([sequence.rng.random() for sequence in batch.sequences])
    assert uniforms[0] == uniforms[1]
    for expected, found in zip(*proposals, strict=True):
        assert found.q.keys() == expected.q.keys()
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        for node, law in expected.q.items():
            np.testing.assert_allclose(found.q[node].dense(), law.dense(), rtol=tolerance, atol=1e-9)


def mid_picture(info: ModelInfo, sampling: SamplingConfig) -> Batch:
    """Three pictures that emitted different numbers of tokens, last and so far."""
    rng = np.random.default_rng(7)
    assert isinstance(info.condition, ClassCondition)
    sequences = []
    for i, (earlier, last) in enumerate([(5, 1), (3, 4), (6, 2)]):
        sequence = ImageSequence(class_prompts(info.condition, [i])[0], info.n_tokens, image_generator(1, i), 0)
        for count in (earlier, last):
            sequence.emit(rng.integers(0, info.vocab_size, count).tolist())
        sequences.append(sequence)
    batch = Batch(sequences, 2 if sampling.guided else 1)
    size = (len(batch) * batch.branches, 4, info.hidden_size)
    batch.features = rng.standard_normal(size).astype(np.float32) * 3
    return batch


def chain_input(info: ModelInfo, uniforms: np.ndarray, **settings: Any) -> ChainInput:
    length, images = uniforms.shape
    rng, hidden = np.random.default_rng(3), info.hidden_size
    return ChainInput(
        input_ids=rng.integers(0, info.vocab_size, (2 * images, 1)),
        features=rng.standard_normal((2 * images, 1, hidden)).astype(np.float32),
        lengths=np.zeros(2 * images, np.int64),
        counts=np.ones(2 * images, np.int64),
        uniforms=uniforms,
        guided=np.ones((length, images), dtype=bool),
        sampling=SamplingConfig(**settings),
    )
