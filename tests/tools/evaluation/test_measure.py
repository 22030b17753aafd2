from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from coolsd_trt.runtime import Cancelled, InputError, SpeculativeConfig
from coolsd_trt.tools.bench.contenders import Contender, Sample, Workload
from coolsd_trt.tools.evaluation import measure as module
from coolsd_trt.tools.evaluation.folder import RunFolder
from coolsd_trt.tools.evaluation.grid import contenders
from coolsd_trt.tools.evaluation.measure import measure

GRID = [
    SpeculativeConfig(rule="cool", draft_length=2),
    SpeculativeConfig(rule="lantern++", lantern_k=3, resampling="native", draft_length=2),
]


def run(bundle: Path, folder: Path, images: int = 5, **sampling: float) -> list[Contender]:
    rows = contenders(GRID)
    measure(bundle, folder, rows, Workload(images, 2, 0, sampling), threads=1)
    return rows


def figures(rows: list[Contender]) -> list[object]:
    """All but the time."""
    return [(row.name, row.sample.tokens, row.sample.passes, np.nan_to_num(row.sample.drift, nan=-1)) for row in rows]


def test_a_run_that_was_killed_goes_on_where_it_was(tiny_bundle: Path, tmp_path: Path) -> None:
    whole = run(tiny_bundle, tmp_path / "whole")
    assert all(len(row.sample.tokens) == 5 for row in whole)
    run(tiny_bundle, tmp_path / "cut")
    lines = tmp_path / "cut" / "measured.jsonl"
    text = lines.read_text()
    lines.write_text(text[: len(text) // 2])  # the second of three lines is cut off
    again = run(tiny_bundle, tmp_path / "cut")
    np.testing.assert_equal(figures(again), figures(whole))
    assert [json.loads(line)["first"] for line in lines.read_text().splitlines()] == [0, 2, 4]
    untouched = lines.read_bytes()
    np.testing.assert_equal(figures(run(tiny_bundle, tmp_path / "cut")), figures(whole))
    assert lines.read_bytes() == untouched


def test_more_pictures_later(tiny_bundle: Path, tmp_path: Path) -> None:
    run(tiny_bundle, tmp_path / "grown", images=3)
    np.testing.assert_equal(
        figures(run(tiny_bundle, tmp_path / "grown", images=5)), figures(run(tiny_bundle, tmp_path / "whole"))
    )
    assert [len(row.sample.tokens) for row in run(tiny_bundle, tmp_path / "grown", images=4)] == [4, 4, 4]


def test_other_settings_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    run(tiny_bundle, tmp_path / "run", images=2)
    with pytest.raises(InputError, match=r"sampling: temperature: 1.0 instead of 0.5\). Use the same options"):
        run(tiny_bundle, tmp_path / "run", images=2, temperature=0.5)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds something else"):
        run(tiny_bundle, tmp_path / "other")


def test_ctrl_c_keeps_what_is_finished(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = module._turn

    def interrupted(*arguments: object) -> dict[str, Sample]:
        if arguments[-1] == 2:
            raise KeyboardInterrupt
        return turn(*arguments)

    monkeypatch.setattr(module, "_turn", interrupted)
    with pytest.raises(Cancelled, match="goes on from"):
        run(tiny_bundle, tmp_path / "run")
    assert len((tmp_path / "run" / "measured.jsonl").read_text().splitlines()) == 1


def test_pictures_of_different_settings_are_kept_apart(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", {})
    rows = contenders([SpeculativeConfig(rule="lantern"), SpeculativeConfig(rule="lantern++")])
    assert len({folder.picture(row, 0) for row in rows}) == 3


def test_settings_that_the_bundle_cannot_do_leave_nothing_behind(tiny_bundle: Path, tmp_path: Path) -> None:
    rows = contenders([SpeculativeConfig(rule="lantern++", lantern_k=20)])
    with pytest.raises(InputError, match="lantern_k = 20"):
        measure(tiny_bundle, tmp_path / "run", rows, Workload(2), threads=1)
    assert not (tmp_path / "run").exists()


def test_captions_are_painted_in_turn() -> None:
    calls = []
    pipeline = SimpleNamespace(generate=lambda **options: calls.append(options))
    workload = Workload(5, 2, seed=3, sampling={"cfg_scale": 2.0}, captions=("a cat", "a dog", "a hat"))
    for first in workload.turns:
        list(workload.turn(pipeline, contenders([])[:1], first))
    # Before each comes a round that nobody counts, which opens what the setting needs.
    assert ["cancel" in call for call in calls] == [True, False] * 3
    timed = [call for call in calls if "cancel" not in call]
    assert [call["captions"] for call in timed] == [["a cat", "a dog"], ["a hat", "a cat"], ["a dog"]]
    assert [call["first_index"] for call in timed] == [0, 2, 4]
    assert all((call["seed"], call["cfg_scale"], "class_ids" in call) == (3, 2.0, False) for call in calls)


def test_who_begins_rotates() -> None:
    class Silent:
        info = None

    workload, rows = Workload(6, 2), contenders(GRID)
    order = []
    for first in workload.turns:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Workload, "_generate", lambda *arguments, **options: None)
            order.append([row.name for row, _ in workload.turn(Silent(), rows, first)])
    assert {names[0] for names in order} == {row.name for row in rows}
    assert all(sorted(names) == sorted(order[0]) for names in order)
