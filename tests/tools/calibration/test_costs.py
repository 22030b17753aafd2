from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.loader import LoadedEngines, load_engines
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import SamplingConfig
from coolsd_trt.tools.calibration.costs import LEAST_CHAINS, LEAST_REPEATS, measure_costs
from coolsd_trt.tools.calibration.plain_host import LEAST_ROUNDS

from tests.export.golden import golden_folder
from tests.export.models import ArrayCheckpoint, tokenizer_tensors


@pytest.fixture
def engines(tiny_bundle: Path) -> Iterator[LoadedEngines]:
    loaded = load_engines(tiny_bundle, "auto", threads=1)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def caption_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a draft."""
    folder = tmp_path_factory.mktemp("captions") / "bundle"
    target = golden_folder("llamagen_t2i", "t2i_tiny_256.pt") / "t2i_tiny_256.pt"
    build_bundle(BuildRequest(target, ArrayCheckpoint(tokenizer_tensors(512))), folder)
    return folder


@pytest.fixture
def calls(engines: LoadedEngines, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What engines were asked: ("allocate", cache length), ("target" or "draft", tokens of a pass), ("chain", L)."""
    made: list[tuple[str, int]] = []

    def spy(engine: object, method: str, entry) -> None:  # type: ignore[no-untyped-def]
        original = getattr(engine, method)

        def wrapped(*arguments, **options):  # type: ignore[no-untyped-def]
            made.append(entry(*arguments))
            return original(*arguments, **options)

        monkeypatch.setattr(engine, method, wrapped)

    for name, engine in (("target", engines.target), ("draft", engines.draft)):
        spy(engine, "allocate", lambda rows, length: ("allocate", length))
        spy(engine, "step", lambda ids, *_, name=name: (name, ids.shape[1]))
    spy(engines.draft, "chain", lambda chain: ("chain", len(chain.uniforms)))
    return made


def test_passes_are_timed_on_caches_as_long_as_in_use(engines: LoadedEngines, calls: list[tuple[str, int]]) -> None:
    info = engines.info
    costs = measure_costs(engines, SamplingConfig(), 1, 3)
    assert calls[0] == ("allocate", info.prefix_length + info.n_tokens + 3)
    assert all(length >= info.prefix_length + info.n_tokens for name, length in calls if name == "allocate")
    assert len(costs.target) == len(costs.draft_first) == 4
    assert costs.floor is None
    assert costs.plain_host > 0


def test_without_time_left_only_the_fewest_repeats_run(engines: LoadedEngines, calls: list[tuple[str, int]]) -> None:
    costs = measure_costs(engines, SamplingConfig(), 1, 3, budget=0.0)
    assert calls.count(("draft", 4)) == LEAST_REPEATS
    # A pass of the target comes before every chain.
    assert calls.count(("target", 4)) == LEAST_REPEATS + LEAST_CHAINS
    assert [calls.count(("chain", length)) for length in (1, 2, 3)] == [LEAST_CHAINS] * 3
    # Its prefill is a pass of the condition, here one position.
    assert calls.count(("target", 1)) == LEAST_REPEATS + 1 + LEAST_ROUNDS
    assert costs.chains is not None
    assert costs.plain_host > 0


def test_the_floor_is_timed_in_turn_with_the_target(engines: LoadedEngines, calls: list[tuple[str, int]]) -> None:
    costs = measure_costs(engines, SamplingConfig(), 1, 1, budget=0.0, floor=lambda size: calls.append(("floor", size)))
    assert len(costs.floor if costs.floor is not None else []) == 2
    timed = [call for call in calls if call[0] in ("target", "floor")][: 4 * LEAST_REPEATS]
    assert timed == [("target", 1), ("floor", 1), ("target", 2), ("floor", 2)] * LEAST_REPEATS


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), SamplingConfig(temperature=0.0), SamplingConfig(top_p=0.9, cfg_scale=1.0)]
)
def test_a_model_of_captions_has_costs_without_a_caption(caption_bundle: Path, sampling: SamplingConfig) -> None:
    with closing(load_engines(caption_bundle, "auto", threads=1)) as engines:
        assert engines.info.prefix_length > 1
        costs = measure_costs(engines, sampling, 2, 2, budget=0.0)
    assert costs.plain_host > 0
    assert costs.chains is None
    assert np.isnan(costs.draft_step)


def test_chains_of_a_length_run_in_a_row(engines: LoadedEngines, calls: list[tuple[str, int]]) -> None:
    """A draft keeps one chain's graph open: taking turns would time the opening of the others."""
    measure_costs(engines, SamplingConfig(), 1, 3)
    lengths = [length for name, length in calls if name == "chain"]
    assert lengths == sorted(lengths)
    assert set(lengths) == {1, 2, 3}
