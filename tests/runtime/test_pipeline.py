from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
from coolsd_trt.engines.backends import onnxruntime_has_tensor_scatter
from coolsd_trt.engines.manifest import LoweringName
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Cancelled, GenerationResult, InputError, Pipeline, Progress, SpeculativeConfig
from coolsd_trt.runtime.condition import class_prompts
from coolsd_trt.runtime.stepping import chain_step, guided, prefill_step
from coolsd_trt.runtime.warping import warp
from goodness import chi_square

RULES = ("ar", "lossless", "cool", "linear", "uniform")


def run(pipeline: Pipeline, classes: Sequence[int], rule: str, length: int = 5, **options: object) -> GenerationResult:
    return pipeline.generate(classes, speculative=SpeculativeConfig(rule=rule, draft_length=length), **options)


@pytest.mark.parametrize("cfg_scale", [1.0, 3.0])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
@pytest.mark.parametrize("rule", RULES[1:])
def test_greedy_equals_autoregression_token_for_token(
    pipeline: Pipeline, rule: str, length: int, cfg_scale: float
) -> None:
    reference = run(pipeline, [0, 1, 2], "ar", temperature=0, cfg_scale=cfg_scale)
    drafted = run(pipeline, [0, 1, 2], rule, length, temperature=0, cfg_scale=cfg_scale)
    np.testing.assert_array_equal(drafted.tokens, reference.tokens)
    assert not drafted.lossy
    assert drafted.drift_per_token == 0


@pytest.mark.parametrize("rule", RULES)
def test_an_image_is_the_same_alone_and_in_any_batch(pipeline: Pipeline, rule: str) -> None:
    classes = [0, 1, 2, 3, 4, 0, 1]
    together = run(pipeline, classes, rule, seed=5)
    for index, class_id in enumerate(classes):
        alone = run(pipeline, [class_id], rule, seed=5, first_index=index)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[index])
        assert alone.stats[0].accepted_lengths == together.stats[index].accepted_lengths
    np.testing.assert_array_equal(run(pipeline, classes, rule, seed=5, batch_size=3).tokens, together.tokens)


def test_seeds_and_indices_make_different_images(pipeline: Pipeline) -> None:
    result = run(pipeline, [0], "cool", images_per_prompt=3, seed=1)
    assert len({row.tobytes() for row in result.tokens}) == 3
    assert not np.array_equal(run(pipeline, [0], "cool", seed=2).tokens[0], result.tokens[0])


def test_statistics_add_up(pipeline: Pipeline) -> None:
    result = run(pipeline, [0, 3], "cool", images_per_prompt=2, temperature=2.0)
    assert result.lossy
    assert [image.shape for image in result.images] == [(8, 8, 3)] * 4
    assert all(image.dtype == np.uint8 for image in result.images)
    for image in result.stats:
        assert sum(image.accepted_lengths) + 1 == image.n_tokens == 16  # prefill emits the first token
        assert len(image.accepted_lengths) + 1 == image.target_passes
        assert sum(image.histogram) == len(image.accepted_lengths)
        assert image.accepted.sum() == sum(image.accepted_lengths) - len(image.accepted_lengths)
        assert (np.diff(image.reached) <= 0).all()
        assert all(rate is None or 0 <= rate <= 1 for rate in image.acceptance_by_position)
        assert image.drift > 0
    assert result.accepted_length == pytest.approx(64 / sum(s.target_passes for s in result.stats))
    assert 1 < result.accepted_length <= 6


def test_autoregression_is_one_token_per_pass(pipeline: Pipeline) -> None:
    result = run(pipeline, [0], "ar")
    assert result.stats[0].target_passes == result.stats[0].n_tokens == 16
    assert result.accepted_length == 1
    assert result.stats[0].seconds["draft"] < result.stats[0].seconds["target"]


def test_the_parameters_make_the_picture_again(pipeline: Pipeline) -> None:
    result = run(pipeline, [1, 4], "uniform", images_per_prompt=2, seed=9, temperature=1.3, top_k=6, top_p=0.9)
    made = result.parameters[3]
    again = pipeline.generate(
        [made["class_id"]],
        seed=made["seed"],
        first_index=made["index"],
        **{name: made[name] for name in ("cfg_scale", "temperature", "top_k", "top_p")},
        speculative=SpeculativeConfig(**{name: made[name] for name in SpeculativeConfig.model_fields}),
    )
    np.testing.assert_array_equal(again.images[0], result.images[3])


def test_progress_grows_to_the_end(pipeline: Pipeline) -> None:
    seen: list[Progress] = []
    run(pipeline, [0, 1, 2], "cool", batch_size=2, progress=seen.append)
    tokens = [snapshot.tokens_done for snapshot in seen]
    assert tokens == sorted(tokens)
    assert (seen[-1].tokens_done, seen[-1].tokens_total, seen[-1].images_done) == (48, 48, 3)
    assert seen[-1].accepted_length == pytest.approx(48 / seen[-1].target_passes)


def test_cancel_stops_between_rounds(pipeline: Pipeline) -> None:
    cancel = threading.Event()
    with pytest.raises(Cancelled, match="of 16 image tokens"):
        run(pipeline, [0], "ar", cancel=cancel, progress=lambda snapshot: cancel.set())
    assert run(pipeline, [0], "ar").tokens.shape == (1, 16)


@pytest.mark.parametrize(
    "classes, options, words",
    [
        ([], {}, "class_ids is empty"),
        ([5], {}, "class id 5: this model knows 0 to 4"),
        ([-1], {}, "class id -1"),
        ([0], {"images_per_prompt": 0}, "images_per_prompt = 0"),
        ([0], {"batch_size": 0}, "batch_size = 0"),
        ([0], {"seed": -1}, "seed = -1"),
        ([0], {"top_p": 2.0}, "top_p = 2.0"),
        ([0], {"speculative": SpeculativeConfig(draft_length=9)}, "draft_length = 9: .* at most 8"),
    ],
)
def test_bad_calls_are_refused_before_anything_runs(
    pipeline: Pipeline, classes: list[int], options: dict, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        pipeline.generate(classes, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_ids": [3.0]}, r"class_ids\[0\] = 3.0: it must be an integer"),
        ({"class_ids": ["3"]}, r"class_ids\[0\] = '3'"),
        ({"class_ids": 5}, "class_ids = 5: it must be a list"),
        ({"images_per_prompt": 2.0}, "images_per_prompt = 2.0"),
        ({"batch_size": 2.0}, "batch_size = 2.0"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"first_index": None}, "first_index = None"),
        ({"speculative": {"rule": "ar"}}, "it must be a SpeculativeConfig"),
    ],
)
def test_arguments_of_another_type_are_explained(pipeline: Pipeline, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipeline.generate(**{"class_ids": [0], **options})


def test_numpy_integers_are_integers(pipeline: Pipeline) -> None:
    plain = pipeline.generate([2], seed=3)
    numpy = pipeline.generate(np.array([2], dtype=np.uint8), seed=np.int64(3), batch_size=np.int32(1))
    np.testing.assert_array_equal(numpy.tokens, plain.tokens)
    assert json.dumps(numpy.parameters) == json.dumps(plain.parameters)


def test_threads_wait_for_each_other(pipeline: Pipeline) -> None:
    expected = [run(pipeline, [i], "lossless", seed=7).tokens for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: run(pipeline, [i], "lossless", seed=7).tokens, range(4)))
    np.testing.assert_array_equal(found, expected)


def test_a_closed_pipeline_says_so(tiny_bundle: Path) -> None:
    pipeline = Pipeline.load(tiny_bundle)
    pipeline.close()
    pipeline.close()
    with pytest.raises(InputError, match="closed"):
        pipeline.generate([0])


def test_a_bundle_without_a_draft_runs_only_ar(tiny_checkpoints: Path, tmp_path: Path) -> None:
    build_bundle(BuildRequest(tiny_checkpoints / "target", tiny_checkpoints / "image_tokenizer"), tmp_path / "b")
    with Pipeline.load(tmp_path / "b") as bare:
        assert run(bare, [0], "ar").accepted_length == 1
        with pytest.raises(InputError, match="needs a draft"):
            run(bare, [0], "cool")


def first_tokens_law(pipeline: Pipeline, class_id: int, sampling_options: dict) -> np.ndarray:
    """The exact joint law of the first two tokens, [V, V], from the target alone."""
    info, target = pipeline.info, pipeline._engines.target
    sampling = info.sampling.model_copy(update=sampling_options)
    target.allocate(2, info.prefix_length + info.n_tokens)
    prompts = class_prompts(info.condition, [class_id])
    first = warp(guided(prefill_step(target, prompts, branches=2).logits[:, -1], sampling, 0), sampling)[0]
    second = []
    for token in range(info.vocab_size):
        ids = np.full((2, 1), token)
        logits = chain_step(target, ids, np.ones(2, np.int64)).logits[:, 0]
        second.append(warp(guided(logits, sampling, 1), sampling)[0])
    return first[:, None] * np.array(second)


@pytest.mark.parametrize("rule", ["ar", "lossless"])
def test_the_first_two_tokens_follow_the_targets_law(pipeline: Pipeline, rule: str) -> None:
    """Chi-square over the 64 pairs, 3,000 images: it detects a total-variation error of 0.06 with power > 0.99."""
    law = first_tokens_law(pipeline, 2, {"cfg_scale": 2.0, "temperature": 1.0}).ravel()
    tokens = run(pipeline, [2], rule, 3, images_per_prompt=3000, cfg_scale=2.0, seed=11, batch_size=500).tokens
    observed = np.bincount(tokens[:, 0] * 8 + tokens[:, 1], minlength=64)
    assert chi_square(observed, law) > 1e-3


def test_a_lossy_rule_leaves_that_law(pipeline: Pipeline) -> None:
    """The same test as above must see a relaxation of 3, or it sees nothing."""
    law = first_tokens_law(pipeline, 2, {"cfg_scale": 2.0, "temperature": 1.0}).ravel()
    config = SpeculativeConfig(rule="uniform", delta=3.0, draft_length=3)
    tokens = pipeline.generate(
        [2], images_per_prompt=3000, cfg_scale=2.0, seed=11, batch_size=500, speculative=config
    ).tokens
    observed = np.bincount(tokens[:, 0] * 8 + tokens[:, 1], minlength=64)
    assert chi_square(observed, law) < 1e-6


@pytest.mark.parametrize(
    "lowering",
    [
        pytest.param(
            "tensor_scatter",
            marks=pytest.mark.skipif(not onnxruntime_has_tensor_scatter(), reason="onnxruntime before 1.24"),
        ),
        "portable",
    ],
)
def test_grouped_kv_heads_and_other_sizes_run(tmp_path: Path, lowering: LoweringName) -> None:
    tiny.make_checkpoints(tmp_path, dim=48, layers=3, heads=4, kv_heads=2, vocab=13, grid=3, seed=4)
    build_bundle(
        BuildRequest(tmp_path / "target", tmp_path / "image_tokenizer", tmp_path / "draft", lowering=lowering),
        tmp_path / "bundle",
    )
    with Pipeline.load(tmp_path / "bundle") as pair:
        reference = run(pair, [0, 4], "ar", temperature=0)
        np.testing.assert_array_equal(run(pair, [0, 4], "lossless", temperature=0).tokens, reference.tokens)
        assert reference.tokens.shape == (2, 9)
