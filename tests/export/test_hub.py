"""Checkpoints from the hub: what is asked of it, and what its failures read like. The hub is a folder here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from coolsd_trt.export.hub import HubReference, download, parse_reference
from coolsd_trt.runtime import InputError
from coolsd_trt.tools.cli.build import build
from huggingface_hub import errors
from safetensors.numpy import save_file


@pytest.fixture()
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """<hub>/<owner>/<name>/... is what repositories hold; downloads go to <tmp>/cache, file by file as asked."""

    def snapshot_download(repo: str, revision: str | None, allow_patterns: list[str]) -> str:
        snapshot = tmp_path / "cache" / repo.replace("/", "--") / (revision or "main")
        for file in (tmp_path / "hub" / repo).rglob("*"):
            name = file.relative_to(tmp_path / "hub" / repo).as_posix()
            if file.is_file() and any(fnmatch(name, pattern) for pattern in allow_patterns):
                (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, snapshot / name)
        snapshot.mkdir(parents=True, exist_ok=True)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return tmp_path / "hub"


def fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(*arguments: object, **options: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


@pytest.mark.parametrize(
    "text, reference",
    [
        ("a/b", HubReference("target", "a/b", None, "")),
        ("a/b@v1", HubReference("target", "a/b", "v1", "")),
        ("draft=a/b:pytorch_model.bin", HubReference("draft", "a/b", None, "pytorch_model.bin")),
        ("image-decoder=a/b@refs/pr/3:x/y.pt", HubReference("image-decoder", "a/b", "refs/pr/3", "x/y.pt")),
    ],
)
def test_references(text: str, reference: HubReference) -> None:
    assert parse_reference(text) == reference


@pytest.mark.parametrize("text", ["", "a@b@c", "drafter=a/b", "a/b@", "a/b:", "target="])
def test_bad_references(text: str) -> None:
    with pytest.raises(InputError, match=r"--from-hub .*: expected \[ROLE=\]REPO\[@REVISION\]\[:PATH\].*image-decoder"):
        parse_reference(text)


def test_a_bundle_from_three_repositories(hub: Path, tiny_checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoints / "target", hub / "me" / "target")
    (hub / "me" / "target" / "flax_model.msgpack").write_bytes(b"not asked for")
    shutil.copytree(tiny_checkpoints / "draft", hub / "me" / "models" / "draft")
    tokenizer = tiny_checkpoints / "image_tokenizer" / "model.safetensors"
    shutil.copyfile(tokenizer, hub / "me" / "models" / "vq.safetensors")
    save_file({"x": np.zeros(1)}, hub / "me" / "models" / "other.safetensors")
    build(
        tmp_path / "bundle",
        from_hub=["me/target", "draft=me/models:draft", "image-decoder=me/models@v2:vq.safetensors"],
    )
    assert (tmp_path / "bundle" / "manifest.json").is_file()
    got = {file.relative_to(tmp_path / "cache").as_posix() for file in (tmp_path / "cache").rglob("*.*")}
    assert got == {
        "me--target/main/model.safetensors",
        "me--target/main/config.json",
        "me--target/main/class_names.json",
        "me--models/main/draft/model.safetensors",
        "me--models/main/draft/config.json",
        "me--models/v2/vq.safetensors",
    }


def test_a_repository_without_what_was_named(hub: Path) -> None:
    (hub / "me" / "x").mkdir(parents=True)
    (hub / "me" / "x" / "c2i.pt").write_bytes(b"x")
    with pytest.raises(InputError, match=r"no \.safetensors files at the top in me/x.*Name a file.*me/x/tree/main"):
        download(parse_reference("me/x"))
    with pytest.raises(InputError, match=r"no c2i_B\.pt in me/x.*tree/v1"):
        download(parse_reference("me/x@v1:c2i_B.pt"))
    assert download(parse_reference("me/x:c2i.pt")).read_bytes() == b"x"


def made(kind: type[Exception]) -> Exception:
    """An error whose constructor wants the server's answer."""
    return kind.__new__(kind, "404")


@pytest.mark.parametrize(
    "error, words",
    [
        (made(errors.RepositoryNotFoundError), "no such repository, or a private one. Check the name 'a/b'"),
        (made(errors.GatedRepoError), "access to a/b is restricted. Accept its terms on https://huggingface.co/a/b"),
        (made(errors.RevisionNotFoundError), "a/b has no revision 'v9'. Expected a branch, a tag or a commit"),
        (errors.HFValidationError("x"), "'a/b' is no repository's name. Expected owner/name"),
        (errors.OfflineModeIsEnabled("x"), r"the hub can't be reached.*HF_HUB_OFFLINE.*--target FOLDER"),
        (ConnectionResetError("reset"), "the hub can't be reached"),
        (OSError("disk full"), r"the download failed \(disk full\). Try again"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_say_what_to_do(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, error)
    with pytest.raises(InputError, match=f"--from-hub a/b@v9: .*{words}"):
        download(parse_reference("a/b@v9"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"needs huggingface_hub.*pip install 'coolsd-trt\[hub\]'"):
        download(parse_reference("a/b"))


def test_without_a_network(tmp_path: Path) -> None:
    """A port that nobody listens on, and an empty cache: one message, nothing built."""
    options = ["--from-hub", "a/b", "--from-hub", "image-decoder=a/b", "--out", str(tmp_path / "bundle")]
    done = subprocess.run(
        [sys.executable, "-m", "coolsd_trt.tools.cli", "build", *options],
        env={**environment(), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "error: --from-hub a/b: the hub can't be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "bundle").exists()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HF_")}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"target": Path("x"), "from_hub": ["a/b"]}, "--target is given twice"),
        ({"from_hub": ["draft=a/b", "draft=c/d"]}, "--draft is given twice"),
        ({"from_hub": ["a/b"]}, "--image-decoder is missing. Give the checkpoint, --from-hub image-decoder=REPO"),
        ({"from_hub": ["a/b"], "random_weights": "c2i-B"}, "--from-hub and --random-weights exclude each other"),
    ],
)
def test_contradictions_are_named_before_anything_is_downloaded(
    options: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fails(monkeypatch, AssertionError("downloaded"))
    with pytest.raises(InputError, match=words):
        build(tmp_path / "bundle", **options)
