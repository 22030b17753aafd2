"""Every place that results are written to is checked before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from coolsd_trt.runtime import InputError
from coolsd_trt.runtime.files import replacing_file
from coolsd_trt.tools.cli.commands import app
from coolsd_trt.tools.cli.errors import run_app
from coolsd_trt.tools.cli.output import STDOUT, writable_files, writable_folder
from coolsd_trt.tools.cli.pictures import is_file


def refused(words: str, **files: Path) -> None:
    with pytest.raises(InputError, match=words), writable_files({f"--{name}": path for name, path in files.items()}):
        pass


def test_files_are_not_made_but_their_folders_are_and_vanish_when_the_work_fails(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    with pytest.raises(KeyError), writable_files({"--json": path, "--plot": None, "--csv": STDOUT}):
        assert path.parent.is_dir() and not path.exists()
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["sweep", "tempfile.TemporaryFile"])
def test_ctrl_c_during_the_checks_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"coolsd_trt.tools.cli.output.{step}", interrupted)
    with pytest.raises(KeyboardInterrupt), writable_folder(tmp_path / "new" / "p", "--out"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["a.png", "./sub/../a.png", "link.png"])
def test_one_file_for_two_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.png").symlink_to("a.png")
    refused(r"--json .*\.png: --out is the same file", out=Path("a.png"), json=Path(other))


def test_stdout_takes_one_result() -> None:
    refused("--json -: --csv is the same file", csv=STDOUT, json=STDOUT)


def test_names_that_can_not_be_files(tmp_path: Path) -> None:
    (tmp_path / "dir.png").mkdir()
    refused(r"--out .*dir\.png: it is a folder. Name a file in it", out=tmp_path / "dir.png")
    refused(r"--out x+\.png: can't be written \(File name too long\)", out=Path("x" * 300 + ".png"))
    refused("--json /dev/null: it is not a file", json=Path("/dev/null"))
    refused("can't be written", json=tmp_path / ("x" * 300) / "a.json")


def test_a_bundle_is_not_written_into(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    (tmp_path / "link").symlink_to("bundle")
    before = sorted(bundle.rglob("*"))
    for path in ("bundle/manifest.json", "bundle/a.png", "bundle/pictures/a.png", "link/target.onnx"):
        refused("is a bundle", json=tmp_path / path)
    with pytest.raises(InputError, match="is a bundle"), writable_folder(bundle / "pictures", "--out"):
        pass
    assert sorted(bundle.rglob("*")) == before


@pytest.mark.parametrize(
    "command, options",
    [
        ("generate", ["-c", "0", "--out", "new", "--json", "{bundle}/manifest.json"]),
        ("generate", ["-c", "0", "--out", "{bundle}/pictures"]),
        ("generate", ["-c", "0", "--out", "{bundle}", "--grid"]),
        ("profile", ["--trace", "{bundle}/target.onnx"]),
        ("profile", ["--html", "{bundle}/page.html"]),
        ("evaluate", ["--run", "new", "--csv", "{bundle}/manifest.json"]),
        ("calibrate", ["--json", "{bundle}/manifest.json"]),
    ],
)
def test_no_command_writes_into_a_bundle(
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    options: list[str],
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        run_app(lambda: app([command, str(bundle), *(option.format(bundle=bundle) for option in options)]))
    assert exit_.value.code == 2
    assert "is a bundle" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path != bundle} == {
        path: stamp for path, stamp in before.items() if path != bundle
    }


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    with replacing_file(tmp_path / "a.png") as temporary:
        left = temporary.with_name(temporary.name.replace("a.png", "b.png"))
        left.touch()
        with writable_folder(tmp_path, "--out"):
            assert (temporary.exists(), left.exists()) == (True, False)


def test_formats_that_are_not_written() -> None:
    assert [is_file(Path(name)) for name in ("a.PNG", "folder", "v1.5")] == [True, False, False]
    for name in ("a.jpg", "a.WEBP", "a.tiff"):
        with pytest.raises(InputError, match=r"Expected FILE\.png, or a folder"):
            is_file(Path(name))
