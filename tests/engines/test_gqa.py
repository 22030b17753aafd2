"""onnxruntime's own attention against the graph every backend reads: the same numbers for every kind of step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.ort import OrtTransformer, runs_gqa
from coolsd_trt.engines.ort_draft import OrtDraft
from coolsd_trt.engines.ort_opener import OrtOpener
from coolsd_trt.runtime.condition import CaptionCondition
from coolsd_trt.runtime.protocols import StepOutput
from coolsd_trt.runtime.stepping import chain_step, tree_step
from coolsd_trt.runtime.trees import TREES

pytestmark = pytest.mark.skipif(not runs_gqa(), reason="this onnxruntime's GroupQueryAttention has no query_seqlens")

ROWS, TOLERANCE = 3, 1e-4
TREE = TREES["naive_extend_57"]  # its nodes reach past the RoPE table
Step = Callable[[OrtTransformer], StepOutput]


@pytest.fixture
def both(tiny_bundle: Path) -> Callable[[Step], None]:
    """Runs a step in both lowerings and compares."""
    bundle = Bundle.open(tiny_bundle)
    spec = bundle.manifest.target
    assert spec.gqa is not None
    engines = [OrtTransformer(bundle.file(record), spec, threads=1) for record in (spec.files[0], spec.gqa)]
    for engine in engines:
        engine.allocate(ROWS, 17 + TREE.size)
    assert engines[0].cache_length > spec.positions

    def run(step: Step) -> None:
        expected, found = (step(engine) for engine in engines)
        np.testing.assert_allclose(found.logits, expected.logits, atol=TOLERANCE)
        np.testing.assert_allclose(found.hidden, expected.hidden, atol=TOLERANCE)

    return run


def ids(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 8, (ROWS, length))


def test_chains_of_ragged_rows_and_rolled_back(both: Callable[[Step], None]) -> None:
    for size, lengths in ((1, [0, 0, 0]), (6, [1, 1, 1]), (6, [4, 7, 2]), (1, [9, 3, 8]), (6, [2, 1, 9])):
        both(lambda engine, size=size, lengths=lengths: chain_step(engine, ids(size), np.array(lengths)))


def test_trees(both: Callable[[Step], None]) -> None:
    both(lambda engine: chain_step(engine, ids(16), np.zeros(ROWS, np.int64)))
    for lengths in ([5, 9, 2], [16, 15, 1]):
        both(
            lambda engine, lengths=lengths: tree_step(
                engine, ids(TREE.size), np.array(lengths), TREE.depths[None], TREE.lineage[None]
            )
        )


def test_conditions_that_are_padded_on_the_left(both: Callable[[Step], None]) -> None:
    visible = np.array([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]], dtype=bool)
    both(lambda engine: chain_step(engine, ids(4), np.zeros(ROWS, np.int64)))
    both(lambda engine: chain_step(engine, ids(3), np.full(ROWS, 4), visible=visible))


def test_it_is_chosen_where_it_can_serve(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(tiny_bundle)
    m = bundle.manifest
    assert m.draft is not None

    def graphs() -> list[str]:
        opener = OrtOpener(bundle, 1)
        engines = [opener.transformer("target", m.target), opener.transformer("draft", m.draft)]
        assert isinstance(engines[1], OrtDraft) == ("gqa" in engines[1]._path.name)
        return [engine._path.name for engine in engines]

    assert graphs() == ["target_gqa.onnx", "draft_gqa.onnx"]
    for rows, target in (("self", "target_gqa.onnx"), ("caption", "target.onnx")):
        captions = CaptionCondition(slots=4, feature_size=8, padded_rows=rows)
        bundle.manifest = m.model_copy(update={"condition": captions})
        assert graphs() == [target, "draft_gqa.onnx"]
    monkeypatch.setattr("coolsd_trt.engines.ort_opener.runs_gqa", lambda: False)
    assert graphs() == ["target.onnx", "draft.onnx"]
