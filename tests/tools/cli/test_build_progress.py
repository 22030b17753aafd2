"""The bar of `build`: there on a terminal, absent everywhere else."""

from __future__ import annotations

import io

import pytest
from coolsd_trt.tools.cli import build_progress
from coolsd_trt.tools.cli.build_progress import BuildProgress
from rich.console import Console


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(build_progress, "stderr", Console(file=screen, force_terminal=terminal, width=100))
    with BuildProgress() as bar:
        bar.stage("target")
        bar.weights(2_000_000, 8_000_000)
    assert ("build: target" in screen.getvalue()) == terminal
    assert ("2.0 of 8.0 M weights" in screen.getvalue()) == terminal
    assert terminal or not screen.getvalue()
