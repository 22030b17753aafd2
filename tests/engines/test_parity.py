"""`compare_engines` on onnxruntime's CPU provider: the two lowerings agree, other weights do not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import tiny
from coolsd_trt.engines.loader import load_engines
from coolsd_trt.engines.manifest import LoweringName
from coolsd_trt.engines.parity import TOLERANCES, Parity, compare_engines
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import InputError
from coolsd_trt.tools.cli.commands import app
from typer.testing import CliRunner

pytest.importorskip("polygraphy", reason="needs polygraphy: pip install polygraphy")


def build(checkpoints: Path, out: Path, lowering: LoweringName, draft: bool = True) -> Path:
    drafter = checkpoints / "draft" if draft else None
    request = BuildRequest(checkpoints / "target", checkpoints / "image_tokenizer", drafter, 8, lowering=lowering)
    build_bundle(request, out)
    return out


@pytest.fixture(scope="module")
def pair(tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The two lowerings of one pair."""
    folder = tmp_path_factory.mktemp("pair")
    return tuple(build(tiny_checkpoints, folder / name, name) for name in ("tensor_scatter", "portable"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same shape."""
    folder = tmp_path_factory.mktemp("stranger")
    return build(tiny.make_checkpoints(folder, seed=9), folder / "bundle", "tensor_scatter")


def compare(subject: Path, reference: Path) -> list[Parity]:
    with closing(load_engines(subject, "ort-cpu", threads=1)) as a, closing(load_engines(reference, "ort-cpu")) as b:
        return compare_engines(a, b, TOLERANCES["fp32"])


def test_the_lowerings_agree_on_every_output(pair: tuple[Path, Path]) -> None:
    results = compare(*pair)
    assert {(result.part, result.output) for result in results} == {
        ("target", "logits"),
        ("target", "hidden"),
        ("draft", "logits"),
        ("draft", "hidden"),
        ("image decoder", "pixels"),
    }
    assert all(result.passed and result.difference < 1e-4 and result.scale > 0 for result in results)


def test_other_weights_are_told(pair: tuple[Path, Path], stranger: Path) -> None:
    assert not any(result.passed for result in compare(stranger, pair[0]))


def test_engines_of_different_models_are_refused(
    pair: tuple[Path, Path], tiny_checkpoints: Path, tmp_path: Path
) -> None:
    tiny.make_checkpoints(tmp_path, vocab=9)
    with pytest.raises(InputError, match="not the same model"):
        compare(build(tmp_path, tmp_path / "other", "portable"), pair[0])
    with pytest.raises(InputError, match="the other has none"):
        compare(build(tiny_checkpoints, tmp_path / "no-draft", "portable", draft=False), pair[0])


def test_the_command_reports_and_exits_with_the_verdict(pair: tuple[Path, Path], stranger: Path) -> None:
    run = CliRunner().invoke
    same = run(app, ["check", str(pair[0]), "--against", str(pair[1])])
    assert (same.exit_code, same.stdout.count("same"), same.stdout.count("DIFFERS")) == (0, 5, 0)
    other = run(app, ["check", str(stranger), "--against", str(pair[1])])
    assert (other.exit_code, other.stdout.count("DIFFERS")) == (1, 5)
    alone = run(app, ["check", str(pair[0]), "--backend", "ort-cpu"])
    assert isinstance(alone.exception, InputError)
    assert "nothing to compare" in str(alone.exception)
