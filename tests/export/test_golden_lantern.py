"""LANTERN's drafter for LlamaGen against the official code: single passes and the tree levels of one round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.eagle import EagleDraft
from coolsd_trt.export.graph.draft import write_draft
from coolsd_trt.export.locate import open_checkpoint
from coolsd_trt.export.weights import TransformerShape
from coolsd_trt.runtime import Pipeline, SamplingConfig, SpeculativeConfig
from coolsd_trt.runtime.condition import caption_prompts
from coolsd_trt.runtime.stepping import chain_step, guided, prefill_step

from .golden import golden_folder, load
from .models import ArrayCheckpoint, shape, tokenizer_tensors

SET = "lantern_llamagen"
SCALE = 3.0
ATOL = 1e-4


# The target of the set, as far as the drafter depends on it.
TARGET = shape(layers=3, heads=4, kv_heads=4, head_dim=32, ffn=512, vocab=512, grid=(16, 16), zero_rows=120)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    folder, tokenizer = golden_folder(SET, "target"), ArrayCheckpoint(tokenizer_tensors(512))
    out = tmp_path_factory.mktemp("bundle") / "lantern"
    build_bundle(BuildRequest(folder / "target", tokenizer, folder / "drafter"), out)
    with Pipeline.load(out, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return load(SET, "drafter_goldens.npz")


@pytest.fixture(scope="module")
def prompt() -> dict[str, np.ndarray]:
    arrays = load(SET, "prompt.npz")
    return {"caption_features": arrays["t5_features_right_padded"], "caption_mask": arrays["t5_attention_mask"]}


def test_hidden_states_of_the_condition_padding_included(
    pipeline: Pipeline, data: dict[str, np.ndarray], prompt: dict[str, np.ndarray]
) -> None:
    prompts = caption_prompts(pipeline.info.condition, pipeline._engines.caption_projection, *prompt.values())
    target = pipeline._engines.target
    target.allocate(2, 140)
    hidden = prefill_step(target, prompts, 2).hidden
    np.testing.assert_allclose(hidden, data["target_prefill_hidden"], atol=ATOL, rtol=0)


def test_the_targets_head_on_the_drafters_features(pipeline: Pipeline, data: dict[str, np.ndarray]) -> None:
    draft = pipeline._engines.draft
    draft.allocate(2, 180)
    both = chain_step(draft, data["fw0_ids"], np.zeros(2, np.int64), data["fw0_hidden_in"]).logits[:, -1]
    np.testing.assert_allclose(both, data["draft_prefill_last_logits_both"], atol=ATOL, rtol=0)
    combined = guided(both, SamplingConfig(cfg_scale=SCALE), 0)
    np.testing.assert_allclose(combined, data["draft_prefill_last_logits_cfg"], atol=5e-4, rtol=0)


def test_drafter_prefill_tree_levels_and_next_round(data: dict[str, np.ndarray], tmp_path: Path) -> None:
    draft = drafter(tmp_path, "t2i", TARGET)
    draft.allocate(2, 180)
    out = chain_step(draft, data["fw0_ids"], np.zeros(2, np.int64), data["fw0_hidden_in"])
    np.testing.assert_allclose(out.hidden, data["fw0_hidden_out"], atol=ATOL, rtol=0)
    length = 120
    for i in range(1, 5):
        length = tree_step(draft, data, i, length)
    # The next round feeds the accepted position and its first level: the tree's cache entries are overwritten.
    tree_step(draft, data, 6, tree_step(draft, data, 5, 120))


def drafter(folder: Path, input_type: str, target: TransformerShape) -> OrtTransformer:
    """The graph of the set's drafter alone; its logits are zero, for the head is the target's."""
    checkpoint = open_checkpoint(golden_folder(SET) / "drafter")
    checkpoint.config = {**checkpoint.config, "input_type": input_type}
    head = np.zeros((target.vocab, target.hidden), np.float32)
    spec = write_draft(folder / "draft.onnx", EagleDraft(checkpoint, target), head, 4, "portable")
    return OrtTransformer(folder / "draft.onnx", spec, threads=1)


def tree_step(draft: OrtTransformer, data: dict[str, np.ndarray], i: int, length: int) -> int:
    """Run the recorded pass i into a cache of `length` positions and compare it; the cache's new length."""
    ids = data[f"fw{i}_ids"]
    nodes = ids.shape[1]
    tree = data.get(f"fw{i}_tree_mask", np.tri(nodes)[None, None])[0, 0] > 0
    mask = np.zeros((2, 1, nodes, draft.cache_length), dtype=bool)
    mask[..., : length + nodes - tree.shape[1]] = True
    mask[..., length + nodes - tree.shape[1] : length + nodes] = tree
    positions = np.broadcast_to(data[f"fw{i}_pos"].ravel(), ids.shape)
    out = draft.step(ids, positions, mask, np.full(2, length), data[f"fw{i}_hidden_in"])
    np.testing.assert_allclose(out.hidden, data[f"fw{i}_hidden_out"], atol=ATOL, rtol=0, err_msg=f"pass {i}")
    return length + nodes


@pytest.mark.parametrize(
    "input_type, grid, zero_rows, first", [("c2i", 24, 0, 0), ("t2i", 16, 119, 110), ("t2i2", 32, 119, 110)]
)
def test_positions_of_every_input_type(
    data: dict[str, np.ndarray], tmp_path: Path, input_type: str, grid: int, zero_rows: int, first: int
) -> None:
    engine = drafter(tmp_path, input_type, replace(TARGET, grid=(grid, grid), zero_rows=zero_rows + 1))
    ids = data["rope_probe_tokens"]
    engine.allocate(*ids.shape)
    positions = np.broadcast_to(first + np.arange(ids.shape[1]), ids.shape)
    mask = np.broadcast_to(np.tri(ids.shape[1], dtype=bool), (2, 1, 40, 40))
    out = engine.step(ids, positions, mask, np.zeros(2, np.int64), data["rope_probe_hidden"])
    np.testing.assert_allclose(out.hidden, data[f"rope_probe_out_{input_type}"], atol=ATOL, rtol=0)


@pytest.mark.parametrize("rule", ["ar", "lossless"])
def test_greedy_decoding_from_the_caption(pipeline: Pipeline, prompt: dict[str, np.ndarray], rule: str) -> None:
    result = pipeline.generate(
        **prompt, cfg_scale=SCALE, temperature=0, top_k=0, speculative=SpeculativeConfig(rule=rule)
    )
    np.testing.assert_array_equal(result.tokens[0], load(SET, "ar_greedy.npz")["tokens"])
    if rule == "lossless":
        assert result.accepted_length > 1.2  # the recorded chain at temperature 1 has 1.22


def test_captions_of_different_lengths_share_a_batch(pipeline: Pipeline, prompt: dict[str, np.ndarray]) -> None:
    """Images finish at different times and move between rows; each must keep its own caption's mask."""
    features = np.repeat(prompt["caption_features"], 3, axis=0)
    mask = np.arange(120) < np.array([[23], [5], [120]])
    settings = dict(seed=4, cfg_scale=SCALE, top_k=100, speculative=SpeculativeConfig(rule="lossless"))
    together = pipeline.generate(caption_features=features, caption_mask=mask, **settings)
    assert len({tokens.tobytes() for tokens in together.tokens}) == 3
    for i in range(3):
        alone = pipeline.generate(
            caption_features=features[i : i + 1], caption_mask=mask[i : i + 1], first_index=i, **settings
        )
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[i])
