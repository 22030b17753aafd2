from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import LoweringName, PrecisionName
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.vq_layout import Level, encoder_shapes
from coolsd_trt.runtime import InputError, Pipeline
from safetensors.numpy import load_file, save_file

from .models import (
    ArrayCheckpoint,
    draft_tensors,
    random_tensors,
    shape,
    target_config,
    target_tensors,
    tokenizer_tensors,
)


@pytest.fixture
def request_(tiny_checkpoints: Path, tmp_path: Path) -> BuildRequest:
    """A request on a private copy of the checkpoints."""
    folder = Path(shutil.copytree(tiny_checkpoints, tmp_path / "checkpoints"))
    return BuildRequest(folder / "target", folder / "image_tokenizer", folder / "draft", max_draft_length=8)


def edit_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_the_second_build_does_nothing(request_: BuildRequest, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    first = build_bundle(request_, out)
    stamps = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    second = build_bundle(request_, out)
    assert (first.cached, second.cached) == (False, True)
    assert first.manifest == second.manifest
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == stamps


def test_a_changed_source_option_or_damaged_bundle_is_built_again(request_: BuildRequest, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    build_bundle(request_, out)
    assert not build_bundle(replace(request_, max_draft_length=4), out).cached
    assert Bundle.open(out).manifest.max_draft_length == 4
    edit_tensors(request_.target, lambda t: t["norm.weight"].__imul__(2))
    assert not build_bundle(request_, out).cached
    (out / "draft.onnx.data").write_bytes(b"")
    assert not build_bundle(request_, out).cached
    assert build_bundle(request_, out).cached


@pytest.mark.parametrize(
    "options, rule, length",
    [
        ({"draft": None}, "ar", 5),
        ({"max_draft_length": 0}, "ar", 1),
        ({"max_draft_length": 2}, "cool", 2),
        ({}, "cool", 5),
    ],
)
def test_the_defaults_of_a_bundle_can_be_used(
    request_: BuildRequest, tmp_path: Path, options: dict, rule: str, length: int
) -> None:
    manifest = build_bundle(replace(request_, **options), tmp_path / "bundle").manifest
    assert (manifest.speculative.rule, manifest.speculative.draft_length) == (rule, length)
    with Pipeline.load(tmp_path / "bundle", threads=1) as pipeline:
        assert pipeline.generate([0]).tokens.shape == (1, 16)


def test_a_sampler_is_there_where_chains_can_be(request_: BuildRequest, tmp_path: Path) -> None:
    assert build_bundle(request_, tmp_path / "a").manifest.draft_sampler is not None
    without = (replace(request_, max_draft_length=0), replace(request_, draft=None))
    for i, request in enumerate(without):
        assert build_bundle(request, tmp_path / str(i)).manifest.draft_sampler is None
        assert not (tmp_path / str(i) / "draft_sampler.onnx").exists()


def test_the_same_checkpoints_give_the_same_bytes(request_: BuildRequest, tmp_path: Path) -> None:
    first, second = (build_bundle(request_, tmp_path / name).manifest for name in "ab")
    assert first == second


@pytest.mark.parametrize("lowering", ["tensor_scatter", "portable"])
def test_graphs_pass_the_checker_with_shape_inference(
    request_: BuildRequest, tmp_path: Path, lowering: LoweringName
) -> None:
    build_bundle(replace(request_, lowering=lowering), tmp_path / "bundle")
    for path in (tmp_path / "bundle").glob("*.onnx"):
        onnx.checker.check_model(str(path), full_check=True)
        opset = onnx.load(path, load_external_data=False).opset_import[0].version
        assert opset == (24 if lowering == "tensor_scatter" and path.stem != "image_decoder" else 18)


def test_the_cache_is_scattered_and_attention_is_driven_by_the_mask(request_: BuildRequest, tmp_path: Path) -> None:
    build_bundle(replace(request_, lowering="tensor_scatter"), tmp_path / "bundle")
    model = onnx.load(tmp_path / "bundle" / "target.onnx", load_external_data=False)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("TensorScatter") == 2 * kinds.count("Attention") == 4
    for node in model.graph.node:
        if node.op_type == "Attention":
            # A mask input and a single output: anything else is wrong or refused somewhere.
            assert len(node.input) == 4
            assert len(node.output) == 1
            assert not node.attribute


def test_large_weights_are_outside_the_graph_and_page_aligned(tiny_bundle: Path) -> None:
    model = onnx.load(tiny_bundle / "target.onnx", load_external_data=False)
    outside = [tensor for tensor in model.graph.initializer if tensor.external_data]
    assert len(outside) >= 2 * 4
    for tensor in outside:
        location = {entry.key: entry.value for entry in tensor.external_data}
        assert location["location"] == "target.onnx.data"
        assert int(location["offset"]) % 4096 == 0
    assert (tiny_bundle / "target.onnx").stat().st_size < 64_000


@pytest.mark.parametrize("stage", ["read", "target", "draft", "image decoder"])
def test_a_build_stopped_at_any_stage_leaves_nothing(request_: BuildRequest, tmp_path: Path, stage: str) -> None:
    def stop(current: str) -> None:
        if current == stage:
            raise KeyboardInterrupt

    out = tmp_path / "made" / "bundle"
    with pytest.raises(KeyboardInterrupt):
        build_bundle(request_, out, report=stop)
    assert not out.exists()
    assert not (tmp_path / "made").exists() or not any((tmp_path / "made").iterdir())


@pytest.mark.parametrize("image_encoder", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_progress_ends_when_all_weights_are_read(image_encoder: bool, precision: PrecisionName, tmp_path: Path) -> None:
    s = shape(vocab=40)
    levels = [Level(32, 2, attention=False, resample=True), Level(32, 2, attention=True, resample=False)]
    vq = tokenizer_tensors(40) | random_tensors(encoder_shapes(8, 32, levels))
    vq["quantize.codebook_used"] = np.zeros(65536, np.float32)
    sources = (ArrayCheckpoint(target_tensors(s), target_config(s)), ArrayCheckpoint(vq))
    draft = ArrayCheckpoint(draft_tensors(s))
    seen: list[tuple[int, int]] = []
    build_bundle(
        BuildRequest(*sources, draft, image_encoder=image_encoder, precision=precision),
        tmp_path / "bundle",
        progress=lambda done, total: seen.append((done, total)),
    )
    done = [entry[0] for entry in seen]
    assert done == sorted(set(done)) and done[0] > 0
    assert {total for _, total in seen} == {done[-1]}


@pytest.mark.parametrize(
    "part, change, words",
    [
        ("target", lambda t: t.pop("layers.1.ffn_norm.weight"), "1 of 18 tensors are missing: layers.1.ffn_norm"),
        (
            "target",
            lambda t: t.clear() or t.update(x=np.zeros(1)),
            "not a complete class-conditional LlamaGen checkpoint, 5 of 5",
        ),
        (
            "target",
            lambda t: t.update({"output.weight": np.zeros((8, 3))}),
            r"output.weight is \[8, 3\], expected \[8, 32\]",
        ),
        (
            "target",
            lambda t: t.update({"layers.0.attention.wo.weight": np.full((32, 32), np.nan)}),
            "layers.0.attention.wo.weight holds NaN",
        ),
        ("draft", lambda t: t.pop("fc.bias"), "not a complete EAGLE draft, 1 of .* fc.bias"),
        (
            "draft",
            lambda t: t.update({"embed_tokens.weight": np.zeros((8, 64))}),
            "for a target of width 64 and 8 tokens; this target has width 32 and 8 tokens",
        ),
        (
            "image_tokenizer",
            lambda t: t.update({"quantize.embedding.weight": np.zeros((9, 8))}),
            "codebook has 9 entries, the target predicts 8",
        ),
        ("image_tokenizer", lambda t: t.pop("decoder.mid.2.conv2.bias"), "missing: decoder.mid.2.conv2.bias"),
    ],
)
def test_wrong_tensors_are_named(
    request_: BuildRequest, tmp_path: Path, part: str, change: Callable[[dict], object], words: str
) -> None:
    edit_tensors(request_.target.parent / part, change)
    with pytest.raises(InputError, match=words):
        build_bundle(request_, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer"),
        ("config.json", b"{", "config.json: not a readable JSON file"),
        ("config.json", b"[]", "config.json: expected a JSON object"),
        ("config.json", b'{"n_head": 5}', "width 32 does not divide into 5 heads"),
        ("config.json", b'{"n_head": 2, "block_size": 15}', "block_size 15 .* not a square"),
        ("class_names.json", b'["a", "b"]', "a JSON list of 5 different class names"),
        ("class_names.json", b'["a", "a", "b", "c", "d"]', "5 different class names"),
    ],
)
def test_wrong_files_are_named(request_: BuildRequest, tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (request_.target / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        build_bundle(request_, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_folder_without_a_checkpoint_and_a_missing_path(request_: BuildRequest, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no checkpoint in it"):
        build_bundle(replace(request_, draft=tmp_path / "empty"), tmp_path / "bundle")
    with pytest.raises(InputError, match="nowhere: no such file"):
        build_bundle(replace(request_, target=tmp_path / "nowhere"), tmp_path / "bundle")


def test_names_are_optional_and_can_be_given(request_: BuildRequest, tmp_path: Path) -> None:
    (request_.target / "class_names.json").unlink()
    assert build_bundle(request_, tmp_path / "a").manifest.condition.names == ("0", "1", "2", "3", "4")
    names = tmp_path / "names.json"
    names.write_text(json.dumps(list("vwxyz")))
    assert build_bundle(replace(request_, class_names=names), tmp_path / "b").manifest.condition.names[4] == "z"


def test_a_torch_pickle_gives_the_same_bundle_and_a_payload_is_refused(request_: BuildRequest, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    expected = build_bundle(request_, tmp_path / "a").manifest
    tensors = {k: torch.from_numpy(v) for k, v in load_file(request_.target / "model.safetensors").items()}
    (request_.target / "model.safetensors").unlink()
    torch.save({"model": tensors, "steps": 3}, request_.target / "pytorch_model.bin")
    made = build_bundle(request_, tmp_path / "b").manifest
    assert made.target == expected.target

    class Payload:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model": Payload()}, request_.target / "pytorch_model.bin")
    with pytest.raises(InputError, match="which could run code"):
        build_bundle(request_, tmp_path / "c")
    assert not (tmp_path / "ran").exists()


def test_grouped_kv_heads_are_read_off_the_shapes(tmp_path: Path) -> None:
    tiny.make_checkpoints(tmp_path, dim=64, heads=4, kv_heads=2)
    spec = build_bundle(BuildRequest(tmp_path / "target", tmp_path / "image_tokenizer"), tmp_path / "b").manifest.target
    assert (spec.kv_heads, spec.head_dim, spec.layers) == (2, 16, 2)
    with Pipeline.load(tmp_path / "b") as pipeline:
        assert pipeline.info.n_tokens == 16
