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
        ({"tree": "dynamic", "tree_nodes": 4}, ["tree_nodes = 4", "5 levels", "at least 5"]),
        ({"tree_branches": 0}, ["tree_branches", "greater than or equal to 1"]),
        ({"rule": "coool"}, ["coool", "Did you mean 'cool'", "lossless"]),
    ],
)
def test_bad_speculative_settings(settings: dict, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        SpeculativeConfig(**settings)
    assert all(word in str(error.value) for word in words), error.value
