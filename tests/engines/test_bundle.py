from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from coolsd_trt.engines.bundle import Bundle, write_bundle
from coolsd_trt.engines.manifest import MANIFEST_NAME, Manifest
from coolsd_trt.runtime import BackendError, BundleError, InputError, Pipeline
from coolsd_trt.runtime.files import SUFFIX


@pytest.fixture
def copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))


def edit_manifest(bundle: Path, change: Callable[[dict], None]) -> None:
    content = json.loads((bundle / MANIFEST_NAME).read_text())
    change(content)
    (bundle / MANIFEST_NAME).write_text(json.dumps(content))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_manifest_describes_every_file_and_survives_a_round_trip(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    on_disk = {path.name for path in tiny_bundle.iterdir()} - {MANIFEST_NAME}
    assert {record.name for record in manifest.files()} == on_disk
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    assert {tensor.name for tensor in manifest.target.inputs} >= {"input_ids", "mask", "past_key_1"}


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda b: (b / "draft.onnx.data").unlink(), r"draft\.onnx\.data: the file is missing"),
        (lambda b: (b / "target.onnx.data").write_bytes(b"x" * 10), r"target\.onnx\.data: 10 bytes, the manifest says"),
        (lambda b: flip_a_bit(b / "target.onnx.data"), r"target\.onnx\.data: sha256 is .* damaged or was replaced"),
        (lambda b: shutil.copy(b / "target.onnx", b / "draft.onnx"), r"draft\.onnx: "),
        (lambda b: (b / MANIFEST_NAME).write_text("{"), "not a readable manifest"),
        (lambda b: (b / MANIFEST_NAME).write_text("[]"), "not a readable manifest"),
        (lambda b: (b / MANIFEST_NAME).write_text("[" * 200_000), "not a readable manifest"),
        (lambda b: (b / MANIFEST_NAME).unlink(), f"no {MANIFEST_NAME} in it"),
        (lambda b: edit_manifest(b, lambda m: m.update(schema_version=99)), "schema version 99.*newer coolsd-trt"),
        (lambda b: edit_manifest(b, lambda m: m.update(schema_version=0)), "schema version 0.*Build it again"),
        (lambda b: edit_manifest(b, lambda m: m["target"].pop("layers")), "field 'target.layers' is wrong"),
        (lambda b: edit_manifest(b, lambda m: m.update(surprise=1)), "field 'surprise' is wrong"),
        (lambda b: edit_manifest(b, lambda m: m["sampling"].update(top_p=7)), "top_p = 7"),
    ],
)
def test_damage_is_named_before_anything_is_loaded(copy: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(copy)
    with pytest.raises(BundleError, match=words):
        Pipeline.load(copy)


def swap_files(m: dict) -> None:
    m["target"]["files"], m["draft"]["files"] = m["draft"]["files"], m["target"]["files"]


def set_at(*path: str | int, value: object) -> Callable[[dict], None]:
    def change(m: dict) -> None:
        for key in path[:-1]:
            m = m[key]
        m[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change, words",
    [
        (set_at("grid", value=[0, 0]), "'grid.0'"),
        (set_at("grid", value=[-1, 16]), "'grid.0'"),
        (set_at("grid", value=[10**9, 16]), "'grid.0'"),
        (set_at("grid", value=[4, 5]), "target has 25 positions, 29 are needed"),
        (set_at("max_draft_length", value=10**12), "'max_draft_length'"),
        (set_at("max_draft_length", value=9), "target has 25 positions, 26 are needed"),
        (set_at("prefix_length", value=2), "prefix_length, id_offset and null_class"),
        (set_at("condition", "null_class", value=99), "prefix_length, id_offset and null_class"),
        (set_at("target", "inputs", value=[]), "'target.inputs'"),
        (lambda m: m["target"]["inputs"].pop(), "target has inputs that do not fit its layers: past_value_1"),
        (lambda m: m["draft"]["outputs"].pop(0), "draft has outputs that do not fit its layers: logits"),
        (set_at("target", "layers", value=3), "target has inputs that do not fit its layers"),
        (set_at("target", "kv_heads", value=1), "target has caches that do not fit"),
        (set_at("target", "inputs", -1, "dtype", value="object"), "target has caches of type float32, object"),
        (set_at("draft", "vocab_size", value=9), "draft and target differ"),
        (swap_files, r"target has the files draft\.onnx"),
        (lambda m: m.update(target=m["draft"], draft=m["target"]), r"target has the files draft\.onnx"),
        (set_at("target", "files", 0, "name", value="../target.onnx"), "'target.files.0.name'"),
        (set_at("neighbors", "name", value="/etc/passwd"), "'neighbors.name'"),
        (set_at("neighbors", "name", value=".."), "'neighbors.name'"),
        (set_at("neighbors", "name", value=""), "'neighbors.name'"),
        (set_at("neighbors", "name", value="engines/a/neighbors.npy"), "outside the bundle's own folder"),
        (set_at("neighbors", "name", value="target.onnx"), "listed twice"),
        (set_at("neighbors", "sha256", value="x" * 64), "'neighbors.sha256'"),
        (set_at("image_decoder", "image_size", value=[7, 8]), "image_decoder makes 8x7 pixels of 4x4 tokens"),
        (set_at("speculative", "draft_length", value=9), "speculative drafts 9 tokens, max_draft_length is 8"),
        (set_at("speculative", "tree", value=5), "tree"),
        (lambda m: m.update(draft=None, draft_sampler=None), "rule 'cool', which needs a draft"),
        (set_at("draft", value=None), "draft_sampler is there, and there is no draft"),
        (lambda m: m.update(neighbors=None, speculative={"rule": "lantern"}), "rule 'lantern', which needs neighbors"),
        (lambda m: m["target"]["files"].pop(), r"target\.onnx\.data: the graph's weights, and .* does not list them"),
    ],
)
def test_an_edited_manifest_is_refused_with_the_field_that_is_wrong(
    copy: Path, change: Callable[[dict], object], words: str
) -> None:
    edit_manifest(copy, change)
    with pytest.raises(BundleError, match=words):
        Bundle.open(copy, verify=False)


def test_paths_that_are_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such bundle"):
        Pipeline.load(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=f"no {MANIFEST_NAME}"):
        Pipeline.load(tmp_path)


def test_unknown_backends_are_named(tiny_bundle: Path) -> None:
    with pytest.raises(BackendError, match="backend = 'npu': no such backend"):
        Pipeline.load(tiny_bundle, backend="npu")


def test_a_bundle_can_be_moved(copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """External data is found beside the .onnx, not in the working directory."""
    monkeypatch.chdir(tmp_path)
    moved = copy.rename(tmp_path / "moved")
    with Pipeline.load(moved.relative_to(tmp_path)) as pipeline:
        assert pipeline.generate([0]).tokens.shape == (1, 16)


def test_a_failed_write_keeps_the_old_bundle_and_leaves_nothing(copy: Path) -> None:
    before = (copy / MANIFEST_NAME).read_text()
    with pytest.raises(RuntimeError), write_bundle(copy) as folder:
        (folder / "target.onnx").write_text("half")
        raise RuntimeError
    assert (copy / MANIFEST_NAME).read_text() == before
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_a_write_replaces_the_whole_bundle(copy: Path) -> None:
    (copy / "engines" / "ort-trt-1.0").mkdir(parents=True)
    (copy / "engines" / "ort-trt-1.0" / "target.engine").touch()
    (copy / f".manifest.json.0123{SUFFIX}").touch()
    with write_bundle(copy) as folder:
        (folder / MANIFEST_NAME).write_text("{}")
    assert [path.name for path in copy.iterdir()] == [MANIFEST_NAME]
    assert [path.name for path in copy.parent.iterdir()] == ["copy"]


def test_other_folders_and_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    for path in (tmp_path / "mine", tmp_path / "mine" / "diary.txt"):
        with pytest.raises(BundleError, match="is not a bundle; it will not be overwritten"), write_bundle(path):
            pass
    with pytest.raises(InputError, match="can't be written"), write_bundle(tmp_path / "mine" / "diary.txt" / "b"):
        pass
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear"


def refused(out: Path, words: str) -> None:
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(BundleError, match=words), write_bundle(out):
        pass
    assert sorted(out.parent.rglob("*")) == before


@pytest.mark.parametrize("manifest", ["{}", "{", "[]", "[" * 200_000, '{"name": "an extension", "version": "1.0"}'])
def test_a_folder_with_somebody_elses_manifest_is_not_overwritten(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "web" / "src").mkdir(parents=True)
    (tmp_path / "web" / "src" / "a.js").touch()
    (tmp_path / "web" / MANIFEST_NAME).write_text(manifest)
    refused(tmp_path / "web", "is not a bundle; it will not be overwritten")


def test_a_bundle_with_files_of_the_users_is_not_overwritten(copy: Path) -> None:
    (copy / "pictures").mkdir()
    for name in ("notes.txt", "pictures/a.png"):
        (copy / name).touch()
    refused(copy, r"besides a bundle it holds notes\.txt, pictures/a\.png, which the build would delete")


def test_a_file_that_is_put_there_during_the_build_survives_it(copy: Path) -> None:
    with pytest.raises(BundleError, match=r"notes\.txt"), write_bundle(copy):
        (copy / "notes.txt").touch()
    assert (copy / "notes.txt").is_file()


def test_a_damaged_bundle_and_one_of_another_schema_are_overwritten(copy: Path) -> None:
    (copy / "target.onnx").unlink()
    edit_manifest(copy, lambda m: m.update(schema_version=0, surprise=1))
    with write_bundle(copy) as folder:
        (folder / "new").touch()
    assert [path.name for path in copy.iterdir()] == ["new"]


@pytest.mark.parametrize("out", [".", "", "..", "../here"])
def test_the_working_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BundleError, match="working directory"), write_bundle(Path(out)):
        pass
