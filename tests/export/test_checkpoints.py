"""Every form in which people have the files: wrappers, training extras, shards, folders, caches, half precision."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.llamagen import LlamaGenTarget
from coolsd_trt.export.locate import open_checkpoint
from coolsd_trt.export.random_weights import SIZES, random_checkpoints
from coolsd_trt.export.vq import VqTokenizer
from coolsd_trt.runtime import InputError
from safetensors.numpy import save_file

from .golden import golden_folder
from .models import ArrayCheckpoint, shape, target_config, target_tensors, tokenizer_tensors

S = shape()
TENSORS = target_tensors(S)
STATE = {name: torch.from_numpy(value) for name, value in TENSORS.items()}


def check(path: Path, tolerance: float = 0) -> LlamaGenTarget:
    checkpoint = open_checkpoint(path)
    for name, value in TENSORS.items():
        np.testing.assert_allclose(np.asarray(checkpoint.tensor(name), np.float32), value, rtol=tolerance)
    return LlamaGenTarget(checkpoint, heads=S.heads, grid=4)


@pytest.mark.parametrize("wrapper", ["model", "module", "state_dict", None])
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_wrappers(tmp_path: Path, wrapper: str | None, zipped: bool) -> None:
    content = {wrapper: STATE, "ema": {}, "steps": 3} if wrapper else STATE
    torch.save(content, tmp_path / "c2i.pt", _use_new_zipfile_serialization=zipped)
    assert check(tmp_path / "c2i.pt").shape == S


def test_a_training_checkpoint_with_its_command_line(tmp_path: Path) -> None:
    arguments = argparse.Namespace(gpt_model="GPT-B", image_size=64, downsample_size=16, lr=1e-4, ema=False)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))]).state_dict()
    torch.save({"model": STATE, "optimizer": optimizer, "steps": 7, "args": arguments}, tmp_path / "c2i.pt")
    check(tmp_path / "c2i.pt")
    assert LlamaGenTarget(open_checkpoint(tmp_path / "c2i.pt"), heads=2).shape == S  # 64 / 16 = 4 tokens a side


def test_a_payload_is_refused_and_does_not_run(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "it-ran",))

    torch.save({"model": STATE, "args": Payload()}, tmp_path / "c2i.pt")
    with pytest.raises(InputError, match=r"could run code. It was refused and nothing in it ran"):
        open_checkpoint(tmp_path / "c2i.pt")
    assert not (tmp_path / "it-ran").exists()


def write_shards(folder: Path) -> None:
    folder.mkdir(parents=True)
    names, weight_map = sorted(TENSORS), {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_file({name: TENSORS[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path / "m")
    check(tmp_path / "m")
    check(tmp_path / "m" / "model.safetensors.index.json")
    before = open_checkpoint(tmp_path / "m").fingerprint()
    (tmp_path / "m" / "config.json").write_text(json.dumps(target_config(S)))
    assert open_checkpoint(tmp_path / "m").fingerprint() != before


def test_shards_in_torchs_format(tmp_path: Path) -> None:
    names, weight_map = sorted(STATE), {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"pytorch_model-{i + 1:05}-of-00002.bin"
        torch.save({name: STATE[name] for name in part}, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    check(tmp_path)
    before = open_checkpoint(tmp_path).fingerprint()
    torch.save({name: STATE[name] + 1 for name in names[1::2]}, tmp_path / "pytorch_model-00002-of-00002.bin")
    assert open_checkpoint(tmp_path).fingerprint() != before


@pytest.mark.parametrize("refs", [True, False])
def test_a_hugging_face_cache(tmp_path: Path, refs: bool) -> None:
    repo = tmp_path / "models--org--llamagen"
    snapshot = repo / "snapshots" / "0123abcd"
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    save_file(TENSORS, repo / "blobs" / "feedbeef")
    (snapshot / "model.safetensors").symlink_to("../../blobs/feedbeef")
    if refs:
        (repo / "snapshots" / "older").mkdir()
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text("0123abcd")
    check(repo)
    check(snapshot)


def test_a_folder_with_a_single_weights_file_of_any_name(tmp_path: Path) -> None:
    torch.save({"model": STATE}, tmp_path / "c2i_B_256.pt")
    check(tmp_path)
    torch.save({"model": STATE}, tmp_path / "c2i_B_384.pt")
    with pytest.raises(InputError, match=r"several checkpoints in it: c2i_B_256.pt; c2i_B_384.pt"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype, tolerance", [(np.float16, 1e-3), (ml_dtypes.bfloat16, 1e-2)])
def test_half_precision(tmp_path: Path, dtype: type, tolerance: float) -> None:
    half = {name: value.astype(dtype) for name, value in TENSORS.items()}
    save_file(half, tmp_path / "model.safetensors")
    target = check(tmp_path, tolerance)
    torch.save({name: torch.from_numpy(v.astype(np.float32)).bfloat16() for name, v in half.items()}, tmp_path / "m.pt")
    check(tmp_path / "m.pt", 1e-2)
    build_bundle(
        BuildRequest(ArrayCheckpoint(half, target_config(S)), ArrayCheckpoint(tokenizer_tensors(S.vocab))),
        tmp_path / "bundle",
    )
    assert target.shape == S


def test_notes_on_what_is_unknown_or_assumed(tmp_path: Path) -> None:
    s = shape(heads=1, head_dim=64, kv_heads=1, grid=(16, 16))
    tensors = {**target_tensors(s), "freqs_cis": np.zeros((3, 2), np.float32)}
    request = BuildRequest(ArrayCheckpoint(tensors, name="c2i.pt"), ArrayCheckpoint(tokenizer_tensors(s.vocab)))
    assert build_bundle(request, tmp_path / "bundle").notes == (
        "c2i.pt does not say, assumed: 1 attention heads (--heads), 16x16 image tokens (--grid).",
        "c2i.pt: ignored 1 tensors that no target has: freqs_cis.",
    )


@pytest.mark.parametrize("name", SIZES)
def test_every_released_size_is_recognised_from_its_shapes(name: str) -> None:
    sources, size = random_checkpoints(name, 0), SIZES[name]
    sources["target"].config = {}
    target = LlamaGenTarget(sources["target"], grid=size.grid)
    s = target.shape
    assert (s.hidden, s.layers, s.heads, s.kv_heads) == (size.hidden, size.layers, size.heads, size.heads)
    assert (s.ffn, s.vocab, s.grid) == (size.ffn, 16384, (size.grid, size.grid))
    assert target.family == ("llamagen-t2i" if size.captions else "llamagen-c2i")


@pytest.mark.parametrize(
    "name, table", [(n, f"llamagen_{n[:3]}_GPT-{n[4:]}") for n in SIZES if n != "t2i-XL-512"] + [("", "llamagen_VQ-16")]
)
def test_random_weights_have_the_official_keys(name: str, table: str) -> None:
    keys = json.loads((golden_folder("formats") / "key_tables.json").read_text())[table]["keys"]
    sources = random_checkpoints(name or "c2i-B", 0)
    shapes = sources["target" if name else "image_decoder"].shapes
    official = {
        key.replace("{i}", str(i)): tuple(entry["shape"])
        for key, entry in keys.items()
        for i in range(entry["count"])
        if name or not key.startswith(("encoder.", "quant_conv.", "quantize.codebook_used"))
    }
    assert dict(shapes) == official


def test_vq8_is_read_like_vq16() -> None:
    keys = json.loads((golden_folder("formats") / "key_tables.json").read_text())["llamagen_VQ-8"]["keys"]
    tensors = {key: np.broadcast_to(np.float32(0), entry["shape"]) for key, entry in keys.items()}
    tokenizer = VqTokenizer(ArrayCheckpoint(tensors), 16384)
    tokenizer.require_encoder()
    assert tokenizer.count("decoder.conv_blocks") == tokenizer.count("encoder.conv_blocks") == 4
