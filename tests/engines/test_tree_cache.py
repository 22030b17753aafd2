"""onnxruntime on a tree: every node sees its own path only, and a compacted path is as good as a chain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Pipeline
from coolsd_trt.runtime.protocols import CachedTransformer
from coolsd_trt.runtime.stepping import chain_step, tree_step
from coolsd_trt.runtime.tree import Tree

from ..export.golden import golden_folder

PREFIX = [[512, 5, 7], [513, 9, 4]]
TREE = Tree.from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]])
IDS = np.array([[3, 11, 22, 33, 44, 55, 66], [8, 10, 20, 30, 40, 50, 60]])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CachedTransformer]:
    out = tmp_path_factory.mktemp("bundle") / "c2i"
    build_bundle(
        BuildRequest(
            golden_folder("llamagen_c2i") / "model.safetensors", golden_folder("llamagen_vq16") / "vq_ds16_tiny.pt"
        ),
        out,
    )
    with Pipeline.load(out, threads=1) as pipeline:
        pipeline._engines.target.allocate(2, 20)
        yield pipeline._engines.target


def test_a_tree_pass_and_its_compaction(target: CachedTransformer) -> None:
    lengths = np.full(2, len(PREFIX[0]))

    def chain(path: list[int]) -> np.ndarray:
        """Logits after every token of a path, fed as a chain."""
        chain_step(target, np.array(PREFIX), np.zeros(2, dtype=np.int64))
        return chain_step(target, IDS[:, path], lengths).logits.copy()

    paths = {node: np.flatnonzero(TREE.lineage[node]).tolist() for node in range(TREE.size)}
    expected = {node: chain(path)[:, -1] for node, path in paths.items()}
    chain_step(target, np.array(PREFIX), np.zeros(2, dtype=np.int64))
    out = tree_step(target, IDS, lengths, TREE.depths[None], TREE.lineage[None])
    for node in range(TREE.size):
        np.testing.assert_allclose(out.logits[:, node], expected[node], atol=1e-4)

    accepted, more = paths[6], np.array([[77], [88]])
    for row in range(2):
        target.compact(row, lengths[row] + np.array(accepted), int(lengths[row]))
    after_tree = chain_step(target, more, lengths + len(accepted)).logits.copy()
    chain(accepted)
    np.testing.assert_allclose(after_tree, chain_step(target, more, lengths + len(accepted)).logits, atol=1e-4)


def test_a_tree_pass_in_levels(target: CachedTransformer) -> None:
    lengths = np.full(2, len(PREFIX[0]))
    chain_step(target, np.array(PREFIX), np.zeros(2, dtype=np.int64))
    whole = tree_step(target, IDS, lengths, TREE.depths[None], TREE.lineage[None]).logits.copy()
    for depth in range(TREE.depth + 1):
        level = np.flatnonzero(TREE.depths == depth)
        lineage = TREE.lineage[level, : level[-1] + 1][None]
        logits = tree_step(target, IDS[:, level], lengths, TREE.depths[None, level], lineage).logits
        np.testing.assert_allclose(logits, whole[:, level], atol=1e-4)
