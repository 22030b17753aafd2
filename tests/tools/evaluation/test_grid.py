from __future__ import annotations

import json
from pathlib import Path

import pytest
from coolsd_trt.runtime import InputError, SpeculativeConfig
from coolsd_trt.tools.evaluation.grid import combinations, contenders, default_grid, grid_of_options, label, read_grid


def test_every_combination_of_what_a_rule_reads() -> None:
    found = combinations("cool", {"delta": [1.1, 1.5], "floor": [1.0, None], "draft_length": [3]})
    assert [(c.delta, c.floor, c.draft_length) for c in found] == [
        (1.1, 1.0, 3),
        (1.1, None, 3),
        (1.5, 1.0, 3),
        (1.5, None, 3),
    ]
    with pytest.raises(InputError, match=r"'lossless' does not read 'delta'. It reads: draft_length"):
        combinations("lossless", {"delta": [1.1]})


def test_options_reach_the_rules_that_read_them() -> None:
    found = grid_of_options(["lossless", "uniform", "cool"], {"delta": [1.2, 1.4], "nu": [0.7]})
    assert [c.rule for c in found] == ["lossless", "uniform", "uniform", "cool", "cool"]
    with pytest.raises(InputError, match="--lantern-k: no rule of the grid reads it"):
        grid_of_options(["cool"], {"lantern_k": [5]})


def test_names_tell_settings_apart_and_ar_comes_first() -> None:
    configs = [
        *default_grid(5),
        *default_grid(4),
        SpeculativeConfig(rule="lossless", tree="mc_sim_7b_63"),
        SpeculativeConfig(rule="lossless", tree=((0,), (1,))),
        SpeculativeConfig(rule="lossless", tree=((0,), (0, 0))),
        SpeculativeConfig(rule="lossless", tree="dynamic", draft_length=3),
        SpeculativeConfig(rule="cool", nu=1.4),
        SpeculativeConfig(rule="lantern", lantern_k=3, resampling="native"),
    ]
    rows = contenders([*configs, configs[0]])
    assert rows[0].name == "ar"
    assert len(rows) == len({json.dumps(c.model_dump()) for c in configs}) + 1
    assert label(SpeculativeConfig(rule="cool", delta=1.5, floor=None)) == "cool L 5 delta 1.5 floor none"
    assert label(SpeculativeConfig(rule="lossless", tree="mc_sim_7b_63")) == "lossless tree mc_sim_7b_63"


def test_a_grid_file(tmp_path: Path) -> None:
    file = tmp_path / "grid.json"
    file.write_text('[{"rule": ["cool", "linear"], "floor": [1, null]}, {"rule": "lossless", "tree": "chain"}]')
    assert [(c.rule, c.floor) for c in read_grid(file)][:4] == [
        ("cool", 1.0),
        ("cool", None),
        ("linear", 1.0),
        ("linear", None),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "not a readable JSON file"),
        ("{}", "not a list of settings"),
        ("[]", "not a list of settings"),
        ('[{"delta": 2}]', "entry 1 has no rule"),
        ('[{"rule": "ar"}, {"rule": "col"}]', "entry 2: rule = 'col': no such rule. Did you mean 'cool'"),
        ('[{"rule": "cool", "delt": 2}]', "entry 1: rule 'cool' does not read 'delt'"),
        ('[{"rule": "cool", "delta": [1.1, -2]}]', "entry 1: delta = -2"),
    ],
)
def test_bad_grid_files_are_explained(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "grid.json"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        read_grid(file)
