"""Checkpoints that are no good: one clear message, exit code 2, nothing left behind."""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from coolsd_trt.tools.cli import main
from PIL import Image
from safetensors.numpy import save_file

from .models import draft_tensors, shape, target_config, target_tensors, tokenizer_tensors

S = shape()


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """target/, draft/ and tokenizer/, all of them fine."""
    for name, tensors, config in (
        ("target", target_tensors(S), target_config(S)),
        ("draft", draft_tensors(S), {"num_attention_heads": S.heads}),
        ("tokenizer", tokenizer_tensors(S.vocab), {}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
    return tmp_path


def build(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    arguments = ["build", "--target", folder / "target", "--draft", folder / "draft", "--image-decoder"]
    arguments += [folder / "tokenizer", "--out", folder / "bundle", *options]
    monkeypatch.setattr("sys.argv", ["coolsd-trt", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


def save(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, folder / "model.safetensors")


def lfs_pointer(folder: Path) -> None:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 443712345\n"
    (folder / "target" / "model.safetensors").write_text(text)


def truncated(folder: Path) -> None:
    file = folder / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def missing_shard(folder: Path) -> None:
    (folder / "target" / "model.safetensors").unlink()
    index = {"weight_map": {"norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "target" / "model.safetensors.index.json").write_text(json.dumps(index))


def wrong_dtype(folder: Path) -> None:
    tensors = target_tensors(S)
    tensors["norm.weight"] = tensors["norm.weight"].astype(np.int32)
    save(folder / "target", tensors)


def transposed(folder: Path) -> None:
    tensors = target_tensors(S)
    name = "layers.0.feed_forward.w1.weight"
    save(folder / "target", {**tensors, name: np.ascontiguousarray(tensors[name].T)})


def not_finite(folder: Path) -> None:
    tensors = target_tensors(S)
    tensors["layers.1.attention.wo.weight"][3, 5] = np.nan
    save(folder / "target", tensors)


def draft_of_another_width(folder: Path) -> None:
    save(folder / "draft", draft_tensors(shape(heads=3, kv_heads=3)))


def tokenizer_of_another_codebook(folder: Path) -> None:
    save(folder / "tokenizer", tokenizer_tensors(S.vocab + 1))


def empty_folder(folder: Path) -> None:
    for file in (folder / "target").iterdir():
        file.unlink()


def a_picture(folder: Path) -> None:
    (folder / "target" / "model.safetensors").unlink()
    Image.new("RGB", (8, 8)).save(folder / "target" / "c2i_B_256.pt", format="PNG")


def missing_tensors(folder: Path) -> None:
    tensors = target_tensors(S)
    save(folder / "target", {name: value for name, value in tensors.items() if "layers.1.ffn" not in name})


def draft_for_captions(folder: Path) -> None:
    config = {"num_attention_heads": S.heads, "input_type": "t2i"}
    (folder / "draft" / "config.json").write_text(json.dumps(config))


def transposed_convolution(folder: Path) -> None:
    tensors, name = tokenizer_tensors(S.vocab), "post_quant_conv.weight"
    save(folder / "tokenizer", {**tensors, name: np.ascontiguousarray(tensors[name].swapaxes(0, 1))})


def truncated_pickle(folder: Path) -> None:
    (folder / "target" / "model.safetensors").unlink()
    (folder / "target" / "c2i_B_256.pt").write_bytes(b"PK\x03\x04" + b"\0" * 400)


def eight_bit_floats(folder: Path) -> None:
    tensors = target_tensors(S)
    tensors["output.weight"] = tensors["output.weight"].astype(ml_dtypes.float8_e4m3fn)
    save(folder / "target", tensors)


def another_model(folder: Path) -> None:
    save(folder / "target", draft_tensors(S))


def heads_in_words(folder: Path) -> None:
    (folder / "target" / "config.json").write_text('{"n_head": "two"}')


def unknown_setting(folder: Path) -> None:
    config = {**target_config(S), "sampling": {"cfg": 2}}
    (folder / "target" / "config.json").write_text(json.dumps(config))


def empty_norm(folder: Path) -> None:
    save(folder / "target", {**target_tensors(S), "norm.weight": np.zeros(0, np.float32)})


def scalar_norm(folder: Path) -> None:
    save(folder / "target", {**target_tensors(S), "norm.weight": np.array(1, np.float32)})


def scalar_codebook(folder: Path) -> None:
    tensors = tokenizer_tensors(S.vocab)
    save(folder / "tokenizer", {**tensors, "quantize.embedding.weight": np.array(1, np.float32)})


def flat_draft(folder: Path) -> None:
    tensors, name = draft_tensors(S), "layers.0.self_attn.k_proj.weight"
    save(folder / "draft", {**tensors, name: tensors[name].ravel()})


def a_layer_out_of_this_world(folder: Path) -> None:
    name = f"layers.{10**12}.attention_norm.weight"
    save(
        folder / "target", {**target_tensors(S), "layers.9999.x": np.ones(1, np.float32), name: np.ones(1, np.float32)}
    )


def index_of_lists(folder: Path) -> None:
    (folder / "target" / "model.safetensors").unlink()
    (folder / "target" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": ["x"]}}))


def index_of_files_elsewhere(folder: Path) -> None:
    (folder / "target" / "model.safetensors").unlink()
    content = {"weight_map": {"a": "../draft/model.safetensors"}}
    (folder / "target" / "model.safetensors.index.json").write_text(json.dumps(content))


def undecodable_ref(folder: Path) -> None:
    (folder / "target" / "model.safetensors").unlink()
    (folder / "target" / "snapshots").mkdir()
    (folder / "target" / "refs").mkdir()
    (folder / "target" / "refs" / "main").write_bytes(b"\xff\xfe")


def nested_config(folder: Path) -> None:
    (folder / "target" / "config.json").write_text("[" * 200_000)


BROKEN: dict[Callable[[Path], None], str] = {
    lfs_pointer: r"target/model.safetensors: this is a Git LFS pointer.*git lfs pull",
    truncated: r"target/model.safetensors: not a readable safetensors file .* truncated",
    missing_shard: r"1 of 1 shards are missing: model-00001-of-00002.safetensors",
    wrong_dtype: r"tensor norm.weight has dtype int32. Expected one of: float32, ",
    transposed: r"layers.0.feed_forward.w1.weight is \[16, 24\], expected \[24, 16\]\.",
    not_finite: r"tensor layers.1.attention.wo.weight holds NaN or infinity",
    draft_of_another_width: r"draft is for a target of width 24 and 12 tokens; this target has width 16",
    tokenizer_of_another_codebook: r"codebook has 13 entries, the target predicts 12 tokens",
    empty_folder: r"target: no checkpoint in it. Expected model.safetensors",
    a_picture: r"c2i_B_256.pt: this is a PNG picture. Expected a checkpoint",
    missing_tensors: r"1 of .* tensors are missing: layers.1.ffn_norm.weight",
    draft_for_captions: r"input_type 't2i'. Expected c2i for this target",
    transposed_convolution: r"post_quant_conv.weight is \[8, 32, 1, 1\], expected \[32, 8, 1, 1\]",
    eight_bit_floats: r"tensor output.weight has dtype F8_E4M3. Expected one of: float32, ",
    another_model: r"5 of 5 tensors are missing: .* The file has embed_tokens.weight; fc.bias; fc.weight and 8 more",
    heads_in_words: r"config.json: n_head = 'two': it must be a valid integer",
    unknown_setting: r"target/config.json: cfg is not a setting",
    empty_norm: r"norm.weight is \[0\], expected 1 dimensions above 0",
    scalar_norm: r"norm.weight is \[\], expected 1 dimensions above 0",
    scalar_codebook: r"quantize.embedding.weight is \[\], expected 2 dimensions",
    flat_draft: r"k_proj.weight is \[256\], expected 2 dimensions",
    a_layer_out_of_this_world: r"not a complete class-conditional LlamaGen checkpoint",
    index_of_lists: r"its weight_map has \['x'\]. Expected names of files beside it",
    index_of_files_elsewhere: r"its weight_map has '../draft/model.safetensors'",
    undecodable_ref: r"refs/main: not a commit's name",
    nested_config: r"config.json: not a readable JSON file",
    truncated_pickle: r"c2i_B_256.pt: torch can't read it as weights .* truncated",
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_broken(damage: Callable[[Path], None], checkpoints: Path, monkeypatch, capsys) -> None:
    damage(checkpoints)
    before = sorted(checkpoints.iterdir())
    assert build(checkpoints, monkeypatch) == 2
    message = capsys.readouterr().err
    assert re.search(BROKEN[damage], message), message
    assert message.count("error:") == 1 and "Traceback" not in message
    assert sorted(checkpoints.iterdir()) == before, "something was left behind"


def test_the_undamaged_ones_build(checkpoints: Path, monkeypatch, capsys) -> None:
    assert build(checkpoints, monkeypatch) == 0
    assert "built" in capsys.readouterr().out
    assert build(checkpoints, monkeypatch) == 0
    assert "up to date" in capsys.readouterr().out


def test_a_failed_build_keeps_the_old_bundle(checkpoints: Path, monkeypatch) -> None:
    assert build(checkpoints, monkeypatch) == 0
    old = (checkpoints / "bundle" / "manifest.json").read_bytes()
    not_finite(checkpoints)
    assert build(checkpoints, monkeypatch) == 2
    assert (checkpoints / "bundle" / "manifest.json").read_bytes() == old


def test_a_full_disk_is_noticed_before_anything_is_written(checkpoints: Path, monkeypatch, capsys) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10, 9, 1))
    assert build(checkpoints, monkeypatch) == 2
    assert "are free there" in capsys.readouterr().err
    assert not (checkpoints / "bundle").exists()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--random-weights", "c2i-B"], "--target and --random-weights exclude each other"),
        (["--heads", "4"], "--heads 4: "),
        (["--grid", "100000000"], "--grid"),
        (["--max-draft", "1000000000000"], "--max-draft"),
        (["--image-encoder"], "tensors are missing: encoder.conv_in.bias"),
    ],
)
def test_bad_options(checkpoints: Path, monkeypatch, capsys, options: list[str], words: str) -> None:
    assert build(checkpoints, monkeypatch, *options) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_size_lists_the_known_ones(tmp_path: Path, monkeypatch, capsys) -> None:
    arguments = ["coolsd-trt", "build", "--random-weights", "c2i-S", "--out", str(tmp_path / "b")]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert "Expected one of: c2i-B, c2i-L" in capsys.readouterr().err
