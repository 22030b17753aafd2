"""A `config.json` that says what can't be; nothing of it reaches a bundle."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import InputError


@pytest.fixture
def request_(tiny_checkpoints: Path, tmp_path: Path) -> BuildRequest:
    folder = Path(shutil.copytree(tiny_checkpoints, tmp_path / "checkpoints"))
    return BuildRequest(folder / "target", folder / "image_tokenizer", folder / "draft", max_draft_length=8)


def edit_config(folder: Path, **values: object) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **values}))


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("block_size", "x", "block_size = 'x'"),
        ("block_size", -4, "block_size = -4"),
        ("block_size", 0, "block_size = 0"),
        ("block_size", int(1e10), "block_size = 10000000000"),
        ("block_size", 15, "block_size 15 .* is not a square"),
        ("n_head", "six", "'six'"),
        ("n_head", [], r"\[\]"),
        ("n_head", 0, " = 0"),
        ("norm_eps", -1, "-1"),
        ("norm_eps", "nan", "'nan'"),
        ("norm_eps", float("nan"), "nan"),
        ("rope_base", 0, "rope_base = 0"),
        ("rope_base", -5, "rope_base = -5"),
        ("sampling", "x", "sampling = 'x'"),
        ("sampling", {"top_p": 7}, r"config\.json: top_p = 7"),
        ("sampling", {"topp": 1}, r"config\.json: topp is not a setting"),
        ("speculative", [1], r"speculative = \[1\]"),
        ("speculative", {"tree": 5}, r"config\.json: tree: 5"),
        ("speculative", {"draft_length": 99}, "draft 99 tokens, and --max-draft is 8"),
        ("name", 5, "name = 5"),
    ],
)
def test_the_targets_field_is_named(
    request_: BuildRequest, tmp_path: Path, field: str, value: object, words: str
) -> None:
    edit_config(request_.target, **{field: value})
    with pytest.raises(InputError, match=words) as error:
        build_bundle(request_, tmp_path / "bundle")
    assert str(request_.target) in str(error.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "field, value, words",
    [
        ("num_attention_heads", "two", "'two'"),
        ("num_attention_heads", 5, "width 32 does not divide into 5 heads"),
        ("rms_norm_eps", 0, "= 0"),
        ("bias", "yes", "bias = 'yes'"),
        ("input_type", ["c2i"], r"input_type = \['c2i'\]"),
    ],
)
def test_the_drafts_field_is_named(
    request_: BuildRequest, tmp_path: Path, field: str, value: object, words: str
) -> None:
    edit_config(request_.draft, **{field: value})
    with pytest.raises(InputError, match=words):
        build_bundle(request_, tmp_path / "bundle")


def test_null_says_nothing(request_: BuildRequest, tmp_path: Path) -> None:
    edit_config(request_.target, norm_eps=None, sampling=None, n_head=None)
    manifest = build_bundle(replace(request_, heads=2), tmp_path / "bundle").manifest
    assert (manifest.target.kv_heads, manifest.sampling.cfg_scale) == (2, 4.0)


@pytest.mark.parametrize(
    "option, value, words", [("heads", 4, "--heads 4: .* says 2"), ("grid", 5, "--grid 5: .* says 4")]
)
def test_an_option_that_contradicts_the_checkpoint(
    request_: BuildRequest, tmp_path: Path, option: str, value: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        build_bundle(replace(request_, **{option: value}), tmp_path / "bundle")
    same = {"heads": 2, "grid": 4}[option]
    assert build_bundle(replace(request_, **{option: same}), tmp_path / "bundle").manifest.grid == (4, 4)
