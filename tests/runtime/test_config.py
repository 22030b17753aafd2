from __future__ import annotations

import pytest
from coolsd_trt.runtime import InputError, SamplingConfig, SpeculativeConfig


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"temperature": -0.1}, ["temperature", "-0.1", "greater than or equal to 0"]),
        ({"top_p": 1.5}, ["top_p", "1.5", "less than or equal to 1"]),
        ({"top_p": 0.0}, ["top_p", "greater than 0"]),
        ({"top_k": -1}, ["top_k", "-1"]),
        ({"cfg_scale": 0.5}, ["cfg_scale", "0.5", "greater than or equal to 1"]),
        ({"temperature": float("nan")}, ["temperature", "finite"]),
        ({"cfg_scale": 1e39}, ["cfg_scale", "1e+39", "less than or equal to 1000000"]),
        ({"temprature": 1.0}, ["temprature", "not a setting"]),
    ],
)
def test_bad_sampling_settings_name_what_was_found_and_expected(settings: dict, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        SamplingConfig(**settings)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"delta": 0}, ["delta", "greater than 0"]),
        ({"draft_length": 0}, ["draft_length", "greater than or equal to 1"]),
        ({"nu": -1}, ["nu", "-1"]),
        ({"nu": 1e308}, ["nu", "less than or equal to 100"]),
        ({"delta": 1e308}, ["delta", "less than or equal to 1000000"]),
        ({"draft_length": 10**9}, ["draft_length", "less than or equal to 256"]),
        ({"tree": "dynamic", "tree_nodes": 10**12}, ["tree_nodes", "less than or equal to 4096"]),
        ({"tree": "dynamic", "tree_branches": 10**12}, ["tree_branches", "less than or equal to 4096"]),
        ({"tree": [[i] for i in range(5000)]}, ["5000 paths", "at most 4096"]),
        ({"tree": "dynamic", "tree_nodes": 4}, ["tree_nodes = 4", "5 levels", "at least 5"]),
        ({"tree_branches": 0}, ["tree_branches", "greater than or equal to 1"]),
        ({"tree": 5}, ["tree: 5", "not a list of paths"]),
        ({"tree": {}}, ["tree: {}", "not a list of paths"]),
        ({"rule": "coool"}, ["coool", "Did you mean 'cool'", "lossless"]),
    ],
)
def test_bad_speculative_settings(settings: dict, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        SpeculativeConfig(**settings)
    assert all(word in str(error.value) for word in words), error.value


def test_the_length_that_is_recorded_is_the_one_that_is_drafted() -> None:
    config = SpeculativeConfig(tree="chain", draft_length=9)
    assert (config.draft_length, config.depth) == (5, 5)
    assert SpeculativeConfig(**config.model_dump()) == config
    assert SpeculativeConfig(tree=[[0], [0, 0]], draft_length=9).draft_length == 2
    assert SpeculativeConfig(tree="dynamic", draft_length=9).draft_length == 9
    assert SpeculativeConfig(draft_length=9).draft_length == 9
