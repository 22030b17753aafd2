"""The training loop: resume, seeds, refusals, EMA."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from coolsd_trt.runtime.errors import InputError
from coolsd_trt.tools.training.codes import Codes
from coolsd_trt.tools.training.llamagen import TargetConfig
from coolsd_trt.tools.training.loop import (
    CHECKPOINT_NAME,
    LOG_NAME,
    Ema,
    LoopSettings,
    TrainingState,
    learning_rate,
    train,
)
from coolsd_trt.tools.training.target import TargetTask

TINY = TargetConfig(
    dim=16, n_layer=1, n_head=2, vocab_size=8, num_classes=3, block_size=16, hidden_dim_ffn=16, head_dim=8
)
LOOP = LoopSettings(steps=6, learning_rate=1e-2, ema_decay=0.9, validate_every=2, checkpoint_every=2, warmup_steps=2)


def _task(dropout: float = 0.2) -> TargetTask:
    rng = np.random.default_rng(0)
    codes = Codes(
        rng.integers(0, 8, (12, 2, 16)).astype(np.uint16),
        rng.integers(0, 3, 12),
        np.arange(12) < 2,
        np.full(12, 1 / 12),
    )
    torch.manual_seed(0)
    return TargetTask(codes, TINY, batch=4, dropout=dropout)


class _Interrupted(TargetTask):
    """Stops in the middle of step 5, as a killed process would."""

    def loss(self, rng):
        if self.calls == 4:
            raise SystemExit
        self.calls += 1
        return super().loss(rng)


def _losses(folder):
    lines = (folder / LOG_NAME).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "elapsed_s"} for line in lines]


def test_a_resumed_run_repeats_the_uninterrupted_one(tmp_path):
    whole = _task()
    train(whole, LOOP, tmp_path / "whole")
    cut = _task()
    cut.__class__, cut.calls = _Interrupted, 0
    with pytest.raises(SystemExit):
        train(cut, LOOP, tmp_path / "cut")
    resumed = _task()
    train(resumed, LOOP, tmp_path / "cut", resume=True)
    assert _losses(tmp_path / "cut") == _losses(tmp_path / "whole")
    assert [r["step"] for r in _losses(tmp_path / "cut")] == [1, 2, 3, 4, 5, 6]
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, resumed.module.state_dict()[name]), name


def test_an_existing_run_is_not_overwritten(tmp_path):
    train(_task(), replace(LOOP, steps=2), tmp_path)
    with pytest.raises(InputError, match="--resume"):
        train(_task(), replace(LOOP, steps=2), tmp_path)


def test_resuming_with_other_settings_names_them(tmp_path):
    train(_task(), replace(LOOP, steps=2), tmp_path)
    with pytest.raises(InputError, match=r"dropout: found 0.2, expected 0.3"):
        train(_task(dropout=0.3), replace(LOOP, steps=2), tmp_path, resume=True)


def test_a_damaged_checkpoint_is_one_message(tmp_path):
    (tmp_path / CHECKPOINT_NAME).write_bytes(b"half a checkpoint")
    with pytest.raises(InputError, match=CHECKPOINT_NAME):
        train(_task(), LOOP, tmp_path, resume=True)


def test_unknown_precision_is_refused(tmp_path):
    with pytest.raises(InputError, match="--precision"):
        train(_task(), replace(LOOP, precision="fp8"), tmp_path)


def test_the_time_budget_ends_the_run(tmp_path):
    state = train(_task(), replace(LOOP, steps=100_000, minutes=0.5 / 60), tmp_path)
    assert 0 < state.step < 100_000
    assert 0.5 <= state.elapsed < 10


def test_learning_rate_warms_up_and_falls():
    rates = [learning_rate(replace(LOOP, steps=100, warmup_steps=10), TrainingState(step=k)) for k in range(101)]
    assert rates[0] == pytest.approx(1e-3, rel=0.01) and max(rates) <= 1e-2
    assert np.argmax(rates) in (9, 10) and rates[100] == pytest.approx(2e-4)


def test_ema_is_swapped_in_and_out():
    module = torch.nn.Linear(2, 2)
    ema = Ema(module, 0.5)
    averaged = {n: v.clone() for n, v in ema.shadow.items()}
    with torch.no_grad():
        module.weight.add_(1)
    current = module.weight.detach().clone()
    with ema.swapped_in(module):
        assert torch.equal(module.weight, averaged["weight"])
    assert torch.equal(module.weight, current)
