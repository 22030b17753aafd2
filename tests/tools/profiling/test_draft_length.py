from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.loader import LoadedEngines, load_engines
from coolsd_trt.runtime import InputError, Pipeline, SamplingConfig, SpeculativeConfig
from coolsd_trt.tools.calibration.prediction import predict
from coolsd_trt.tools.calibration.trace import OMEGAS, Trace
from coolsd_trt.tools.cli.draft_length import note_if_slow
from coolsd_trt.tools.profiling.draft_length import Accepted, Machine, StoredCosts, schedule
from coolsd_trt.tools.profiling.measurement_cache import MeasurementCache

LOSSLESS = SpeculativeConfig(rule="lossless", draft_length=3)
CHEAP = StoredCosts(target=[10.0 + 0.1 * i for i in range(9)], draft=[0.1] * 9, plain_host=0.0)
DEAR = StoredCosts(target=[10.0 * (i + 1) for i in range(9)], draft=[5.0] * 9, plain_host=0.0)


class Known(MeasurementCache):
    """Holds costs and acceptance; nothing is measured."""

    def __init__(self, *values: object) -> None:
        self.values = {type(value): value for value in values}

    def get(self, model, key, measure):  # type: ignore[no-untyped-def]
        return self.values[model]


@pytest.fixture(scope="module")
def engines(tiny_bundle: Path) -> Iterator[LoadedEngines]:
    loaded = load_engines(tiny_bundle, "auto", threads=1)
    yield loaded
    loaded.close()


@pytest.fixture
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle, verify=False)


def machine(bundle: Bundle, engines: LoadedEngines, cache: MeasurementCache, **sampling: float) -> Machine:
    return Machine(bundle.manifest, engines, SamplingConfig(**sampling), 1, 1, cache)


def test_the_cheaper_the_pass_the_longer_the_draft(bundle: Bundle, engines: LoadedEngines) -> None:
    accepted = Accepted(tokens=[1 + sum(0.5**j for j in range(1, i + 1)) for i in range(1, 9)], host=0.0)
    cheap = machine(bundle, engines, Known(accepted, CHEAP)).choose(LOSSLESS)
    dear = machine(bundle, engines, Known(accepted, DEAR)).choose(LOSSLESS)
    assert (cheap[0].draft_length, dear[0].draft_length) == (4, 0)
    speeds = {forecast.draft_length: forecast.speed_up for forecast in cheap}
    assert speeds[0] == 1
    assert speeds[1] == pytest.approx(1.5 * 10 / (10.1 + 0.1))
    assert len(cheap) == 9


def test_a_run_that_does_not_pay_is_said_so(
    bundle: Bundle, engines: LoadedEngines, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Pipeline(engines).generate([0], speculative=LOSSLESS)
    slow = machine(bundle, engines, Known(DEAR)).outcome(result, 3)
    assert slow is not None
    assert (slow.pays, slow.c) == (False, 4.0)
    assert slow.cost == pytest.approx((40 + 5 + 2 * 5) / 10, rel=0.01)
    fast = machine(bundle, engines, Known(CHEAP)).outcome(result, 3)
    assert fast is not None
    assert fast.pays == (result.accepted_length > 1.06)
    note_if_slow(result, LOSSLESS, machine(bundle, engines, Known(DEAR)))
    assert "speculation does not pay here" in capsys.readouterr().err
    note_if_slow(result, SpeculativeConfig(rule="ar"), machine(bundle, engines, Known()))
    assert capsys.readouterr().err == ""


def test_plain_autoregression_is_charged_its_own_host_time(bundle: Bundle, engines: LoadedEngines) -> None:
    accepted = Accepted(tokens=[1.5] * 8, host=8.0)
    costs = CHEAP.model_copy(update={"plain_host": 2.0})
    speeds = {f.draft_length: f.speed_up for f in machine(bundle, engines, Known(accepted, costs)).choose(LOSSLESS)}
    assert speeds[1] == pytest.approx(1.5 * (10 + 2) / (10.1 + 0.1 + 8))


def test_of_a_chain_that_was_not_measured_nothing_is_said(
    bundle: Bundle, engines: LoadedEngines, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Pipeline(engines).generate([0], speculative=LOSSLESS)
    longer = LOSSLESS.model_copy(update={"draft_length": 16})
    assert machine(bundle, engines, Known(DEAR)).outcome(result, 16) is None
    note_if_slow(result, longer, machine(bundle, engines, Known(DEAR)))
    assert capsys.readouterr().err == ""


def test_measured_once_and_again_when_the_entry_is_damaged(
    bundle: Bundle, engines: LoadedEngines, tmp_path: Path
) -> None:
    cache = MeasurementCache(tmp_path / "new")
    costs = machine(bundle, engines, cache).costs
    assert len(costs.target) == len(costs.draft) == 9
    assert len(costs.chains or []) == 8
    (entry,) = (tmp_path / "new").iterdir()
    assert json.loads(entry.read_text())["key"]["build"] == bundle.manifest.build_key
    assert machine(bundle, engines, cache).costs == costs
    entry.write_text(entry.read_text().replace(str(costs.plain_host), "123.0"))
    assert machine(bundle, engines, cache).costs.plain_host == 123
    assert machine(bundle, engines, MeasurementCache(cache.folder, renew=True)).costs.plain_host < 123
    assert machine(bundle, engines, cache).costs.plain_host < 123
    for damage in ("", "{}", '{"value": {"target": "x", "draft": []}}', '{"value": {"target": [NaN], "draft": [1]}}'):
        entry.write_text(damage)
        assert len(machine(bundle, engines, cache).costs.target) == 9
        assert json.loads(entry.read_text())["value"]["target"]
    assert machine(bundle, engines, cache, top_p=0.9).costs.chains is None  # such drafts are made step by step
    assert len(list((tmp_path / "new").iterdir())) == 2  # another setting is another entry; nothing temporary is left


def test_a_cache_that_can_not_be_written_is_done_without(
    bundle: Bundle, engines: LoadedEngines, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert machine(bundle, engines, MeasurementCache(tmp_path / "file" / "cache")).costs.target


def test_expected_tokens_agree_with_running_the_rule(bundle: Bundle, engines: LoadedEngines, tmp_path: Path) -> None:
    """The measured expectation is of four pictures, the run of 200; 0.25 is five standard errors of the former."""
    setting = machine(bundle, engines, MeasurementCache(tmp_path), cfg_scale=1.5, temperature=1.5)
    forecast = {found.draft_length: found.tokens for found in setting.choose(LOSSLESS)}
    result = Pipeline(engines).generate(
        [i % 5 for i in range(200)], seed=2, speculative=LOSSLESS, batch_size=50, cfg_scale=1.5, temperature=1.5
    )
    whole = [n for s in result.stats for n in np.array(s.accepted_lengths)[np.cumsum(s.accepted_lengths) < 11]]
    assert forecast[3] == pytest.approx(np.mean(whole), abs=0.25)
    assert forecast[1] < forecast[2] < forecast[3]


def test_the_papers_schedule_accepts_less_than_its_floored_one() -> None:
    ratio = np.random.default_rng(0).lognormal(0.0, 0.5, (500, 5))
    # On tokens that the draft alone can emit, a relaxation is worth what the ratios say.
    trace = Trace(ratio, np.minimum(1.0, ratio[:, :, None] * OMEGAS))
    paper, floored = (SpeculativeConfig(rule="cool", floor=floor) for floor in (None, 1.0))
    assert schedule(paper, 5)[-1] < 1 <= schedule(floored, 5)[-1]
    tokens = [predict(trace, schedule(config, 5)).tokens for config in (paper, floored)]
    assert 1 < tokens[0] < tokens[1] < 6


@pytest.mark.parametrize(
    ("config", "sampling", "words"),
    [
        (SpeculativeConfig(tree="mc_sim_7b_63"), {}, "--tree none"),
        (SpeculativeConfig(rule="lantern"), {}, "no schedule"),
        (SpeculativeConfig(rule="ar"), {}, "drafts nothing"),
        (LOSSLESS, {"temperature": 0.0}, "greedy"),
    ],
)
def test_what_has_no_length_to_choose_is_refused(
    bundle: Bundle, engines: LoadedEngines, config: SpeculativeConfig, sampling: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=f"--draft-length auto: .*{words}"):
        machine(bundle, engines, Known(), **sampling).choose(config)
