"""Whole pictures on the NumPy pair: chains and trees, rules, batches, the end of the image."""

from __future__ import annotations

import numpy as np
import pytest
from coolsd_trt.runtime import InputError, Pipeline, SpeculativeConfig
from coolsd_trt.runtime.sampling import UniformSource
from coolsd_trt.runtime.trees import TREES

from .enumeration import exact_law, marginal
from .fake_engines import FakeEngines

SHAPES = [None, *TREES, ((0,), (1,), (0, 0), (1, 0)), "dynamic"]


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline(FakeEngines(vocab=40, grid=(6, 6)))


@pytest.mark.parametrize("tree", SHAPES, ids=str)
@pytest.mark.parametrize("cfg_scale", [1.0, 1.5])
def test_greedy_pictures_are_those_of_plain_decoding(pipeline: Pipeline, tree: object, cfg_scale: float) -> None:
    plain = pipeline.generate([0, 1], temperature=0, cfg_scale=cfg_scale, speculative=SpeculativeConfig(rule="ar"))
    config = SpeculativeConfig(rule="cool", tree=tree)
    drafted = pipeline.generate([0, 1], temperature=0, cfg_scale=cfg_scale, speculative=config)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert drafted.accepted_length > 1.5
    assert not drafted.lossy
    assert drafted.drift_per_token == 0


@pytest.mark.parametrize("tree", SHAPES, ids=str)
def test_a_picture_is_the_same_in_any_batch(pipeline: Pipeline, tree: object) -> None:
    config = SpeculativeConfig(rule="lossless", tree=tree)
    together = pipeline.generate([0, 1, 0], images_per_prompt=2, seed=3, top_k=20, speculative=config)
    for i, class_id in enumerate([0, 0, 1, 1, 0, 0]):
        alone = pipeline.generate([class_id], seed=3, first_index=i, top_k=20, speculative=config)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[i])
    assert together.accepted_length > 1.2


def test_a_dynamic_tree_does_not_see_how_far_others_are() -> None:
    """Images near their end draft less deep; those that share their passes may not change what they are offered."""
    pipeline = Pipeline(FakeEngines(vocab=40, grid=(3, 4), noise=1.0))
    config = SpeculativeConfig(rule="lossless", tree="dynamic", draft_length=6, tree_nodes=6, tree_branches=4)
    together = pipeline.generate([0], images_per_prompt=8, seed=0, speculative=config)
    for i in range(8):
        alone = pipeline.generate([0], seed=0, first_index=i, speculative=config)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[i])


@pytest.mark.parametrize("rule", ["lossless", "cool", "uniform", "linear", "lantern", "lantern++"])
@pytest.mark.parametrize("tree", [None, "mc_sim_7b_63", "dynamic"])
def test_every_rule_on_every_shape(pipeline: Pipeline, rule: str, tree: str | None) -> None:
    config = SpeculativeConfig(rule=rule, tree=tree, delta=1.5, lantern_k=5)
    result = pipeline.generate([0, 1], seed=1, top_k=20, speculative=config)
    assert result.lossy == (rule != "lossless")
    assert (result.drift_per_token > 0) == result.lossy
    for stats in result.stats:
        assert stats.n_tokens == 36 == sum(stats.accepted_lengths) + 1
        assert stats.target_passes == len(stats.accepted_lengths) + 1
        assert len(stats.reached) == 5


def test_the_native_residual_reports_no_drift(pipeline: Pipeline) -> None:
    config = SpeculativeConfig(rule="lantern++", lantern_k=5, resampling="native", tree="mc_sim_7b_63")
    result = pipeline.generate([0], speculative=config)
    assert result.lossy
    assert result.as_dict()["drift_per_token"] is None
    assert result.as_dict()["per_image"][0]["drift_per_token"] is None


def test_a_tree_accepts_more_than_a_chain(pipeline: Pipeline) -> None:
    lengths = {
        str(tree): pipeline.generate(
            [0] * 8, seed=5, speculative=SpeculativeConfig(rule="lossless", tree=tree)
        ).accepted_length
        for tree in (None, "mc_sim_7b_63", "naive_extend_57")
    }
    assert lengths["None"] < lengths["mc_sim_7b_63"] < lengths["naive_extend_57"]


def test_larger_dynamic_trees_accept_more(pipeline: Pipeline) -> None:
    lengths = [
        pipeline.generate(
            [0] * 8,
            seed=5,
            speculative=SpeculativeConfig(rule="lossless", tree="dynamic", tree_nodes=nodes, tree_branches=branches),
        ).accepted_length
        for nodes, branches in ((5, 1), (12, 4), (58, 10))
    ]
    assert lengths == sorted(lengths)
    assert lengths[0] + 0.2 < lengths[2]


@pytest.mark.parametrize(("nodes", "branches"), [(5, 1), (200, 3), (60, 200)])
def test_dynamic_trees_of_odd_sizes_are_exact_at_temperature_zero(
    pipeline: Pipeline, nodes: int, branches: int
) -> None:
    """One branch is a chain; more nodes than are ever seen; more branches than there are tokens."""
    plain = pipeline.generate([0, 1], temperature=0, speculative=SpeculativeConfig(rule="ar"))
    config = SpeculativeConfig(rule="lossless", tree="dynamic", tree_nodes=nodes, tree_branches=branches)
    drafted = pipeline.generate([0, 1], temperature=0, speculative=config)
    np.testing.assert_array_equal(drafted.tokens, plain.tokens)
    assert drafted.accepted_length > 1.5


@pytest.mark.parametrize("tree", [None, "mc_sim_7b_63", "dynamic"])
def test_top_k_one_is_greedy_on_any_shape(pipeline: Pipeline, tree: str | None) -> None:
    greedy = pipeline.generate([0], temperature=0, speculative=SpeculativeConfig(rule="ar"))
    config = SpeculativeConfig(rule="lossless", tree=tree)
    np.testing.assert_array_equal(pipeline.generate([0], top_k=1, speculative=config).tokens, greedy.tokens)


def test_a_picture_shorter_than_the_draft() -> None:
    pipeline = Pipeline(FakeEngines(vocab=10, grid=(1, 2)))
    for tree in SHAPES:
        for rule in ("lossless", "ar"):
            result = pipeline.generate([0, 1], speculative=SpeculativeConfig(rule=rule, tree=tree, draft_length=9))
            assert result.tokens.shape == (2, 2)


def test_a_tree_deeper_than_the_bundle_allows_is_refused() -> None:
    engines = FakeEngines(vocab=10, grid=(2, 2))
    path = [[0] * n for n in range(1, 18)]
    with pytest.raises(InputError, match=r"tree of depth = 17.*Use at most 16"):
        Pipeline(engines).generate([0], speculative=SpeculativeConfig(tree=path))


def test_the_chain_is_the_one_child_tree(pipeline: Pipeline) -> None:
    chain = pipeline.generate([0, 1], seed=2, speculative=SpeculativeConfig(rule="lossless"))
    tree = pipeline.generate([0, 1], seed=2, speculative=SpeculativeConfig(rule="lossless", tree="chain"))
    np.testing.assert_array_equal(chain.tokens, tree.tokens)


def picture_law(monkeypatch: pytest.MonkeyPatch, vocab: int, config: SpeculativeConfig) -> np.ndarray:
    """Law of a whole picture of three tokens, [V, V, V], by enumeration of all that the pipeline draws."""
    engines = FakeEngines(vocab, grid=(1, 3), noise=1.0)
    pipeline = Pipeline(engines)

    def run(rng: UniformSource) -> tuple[object, ...]:
        monkeypatch.setattr("coolsd_trt.runtime.pipeline.image_generator", lambda seed, index: rng)
        engines.target.fed.clear()
        result = pipeline.generate([0], cfg_scale=1, speculative=config)
        return tuple(engines.target.fed), tuple(result.stats[0].accepted_lengths), tuple(result.tokens[0].tolist())

    law = np.zeros((vocab,) * 3)
    for tokens, mass in marginal(exact_law(run, resolution=1e-5), lambda outcome: outcome[2]).items():
        law[tokens] += mass
    return law


def test_a_lossless_picture_drafted_one_token_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = picture_law(monkeypatch, 3, SpeculativeConfig(rule="ar"))
    drafted = picture_law(monkeypatch, 3, SpeculativeConfig(rule="lossless", draft_length=1))
    np.testing.assert_allclose(drafted, plain, atol=1e-3)


@pytest.mark.parametrize("tree", [None, ((0,), (1,)), "dynamic"], ids=str)
def test_a_lossless_picture_has_the_targets_law(monkeypatch: pytest.MonkeyPatch, tree: object) -> None:
    """L is 5, the picture has three tokens: the draft is longer than what is left."""
    plain = picture_law(monkeypatch, 3, SpeculativeConfig(rule="ar"))
    drafted = picture_law(monkeypatch, 3, SpeculativeConfig(rule="lossless", tree=tree))
    np.testing.assert_allclose(drafted, plain, atol=1e-3)
    lossy = picture_law(monkeypatch, 3, SpeculativeConfig(rule="uniform", delta=3.0, tree=tree))
    assert np.abs(lossy - plain).sum() / 2 > 0.01
