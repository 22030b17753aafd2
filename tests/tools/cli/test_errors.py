"""What ends a command early: one message and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from coolsd_trt.tools.cli import main
from coolsd_trt.tools.cli.commands import app

COMMANDS = "coolsd_trt.tools.cli.commands"


class Interrupting:
    """An import during which Ctrl-C is pressed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == COMMANDS:
            raise KeyboardInterrupt


def test_ctrl_c_while_the_program_loads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, COMMANDS, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: stopped by Ctrl-C; nothing was written.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_behind_stdout(tiny_bundle: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "coolsd_trt.tools.cli", "inspect", tiny_bundle, *options]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: the output: No space left on device.\n")


@pytest.mark.parametrize("name", [b"a\xff:smile:[bold]", b"[/red]/x"])
def test_paths_that_are_no_text_or_look_like_markup(tiny_bundle: Path, tmp_path: Path, name: bytes) -> None:
    bundle = tmp_path / name.decode(errors="surrogateescape")
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.symlink_to(tiny_bundle)
    command = [sys.executable, "-m", "coolsd_trt.tools.cli", "inspect", bundle]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert name.decode(errors="surrogateescape").replace("\udcff", "\\udcff") in done.stdout


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        app(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"coolsd-trt {version('coolsd-trt')}\n"
