"""The other benchmarks, on a model small enough for tests: that they measure what they say. Timings are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.locate import open_checkpoint
from coolsd_trt.runtime import SamplingConfig
from coolsd_trt.runtime.stepping import chain_step
from coolsd_trt.tools.bench import step, tokens
from coolsd_trt.tools.bench.eager import EagerTarget, sample
from coolsd_trt.tools.bench.host import HostRun
from coolsd_trt.tools.bench.interleaved import BURST, interleave
from coolsd_trt.tools.bench.memory import in_fresh_process, needed_bytes


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coolsd_trt.tools.bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_eager_baseline_computes_what_the_engine_does(tiny_bundle: Path, tiny_checkpoints: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    spec = bundle.manifest.target
    engine = OrtTransformer(bundle.file(spec.files[0]), spec, 1)
    engine.allocate(2, 17)
    eager = EagerTarget(open_checkpoint(tiny_checkpoints / "target", "target").tensor, 2, 2, 4, 2)
    ids = np.random.default_rng(0).integers(0, 8, (2, 16))
    for start, end in ((0, 3), (3, 4), (4, 9)):
        expected = chain_step(engine, ids[:, start:end], np.full(2, 1 + start)).logits
        got = eager.step(torch.from_numpy(ids[:, start:end]), torch.arange(1 + start, 1 + end))
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-4)
    engine.close()


def test_the_eager_sampler_keeps_to_guidance_and_top_k() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 9.0, 0.0, 0.0]]).repeat_interleave(500, 0)
    drawn = sample(logits, 2.0, 1.0, 2).ravel()  # guided: 0, -7, 4, 6
    assert set(drawn.tolist()) == {2, 3}


def test_turns_rotate_and_their_first_call_does_not_count() -> None:
    calls: list[str] = []
    seconds = interleave({name: lambda name=name: calls.append(name) for name in "abc"}, 2)
    assert "".join(calls) == "abc" + "".join(name * BURST for name in "abc" + "bca")
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys("abc", 2 * (BURST - 1))


def test_step_and_tokens_time_every_contender(
    tiny_bundle: Path, tiny_checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bundle(*_: object) -> Bundle:
        return Bundle.open(tiny_bundle)

    target = open_checkpoint(tiny_checkpoints / "target", "target")
    monkeypatch.setattr(step, "random_bundle", bundle)
    monkeypatch.setattr(step, "checkpoints", lambda *_: {"target": target})
    monkeypatch.setattr(tokens, "random_bundle", bundle)
    monkeypatch.setattr(tokens, "GRIDS", (2, 4))
    step.step(["tiny"], 3, 1, tmp_path, tmp_path / "step.json")
    tokens.tokens("tiny", 3, 1, tmp_path, tmp_path / "tokens.json")
    figures = json.loads((tmp_path / "step.json").read_text())["figures"]["tiny"]
    assert figures[step.OURS]["over_ours"]["value"] == 1
    assert figures[step.PRODUCTS]["over_products"]["value"] == 1
    assert figures[step.OUR_TOKEN]["milliseconds"] > figures[step.PRODUCTS]["milliseconds"]
    assert set(json.loads((tmp_path / "tokens.json").read_text())["figures"]) == {"4", "16"}

    done = bench("tables", tmp_path, "--out", tmp_path / "page.md")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text()
    assert page.count("## ") == 2
    assert "| tiny | eager torch pass |" in page


def test_host_rounds_are_real_rounds_without_the_engines() -> None:
    run = HostRun.make(64, 3, SamplingConfig(cfg_scale=2.0, top_k=20))
    run.picture(0)
    rounds = len(run.seconds)
    assert 256 / 4 <= rounds < 256 / 1.5  # the draft is good, not perfect
    assert all(seconds > 0 for seconds in run.seconds)
    run.picture(0)
    assert len(run.seconds) == 2 * rounds  # the same picture again


def test_host_and_startup_report(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ["--vocab", 64, "--vocab", 256, "--pictures", 1, "--top-k", 20, "--against", "none"]
    done = bench("host", *options, "--json", tmp_path / "host.json")
    assert done.returncode == 0, done.stderr
    parts = json.loads((tmp_path / "host.json").read_text())["figures"]["64"]["parts_microseconds"]
    assert {"host/verify", "host/warp", "draft/warp"} <= set(parts)
    done = bench("startup", tiny_bundle, "--turns", 1, "--json", tmp_path / "startup.json")
    assert done.returncode == 0, done.stderr
    assert "| first picture after loading |" in done.stdout
    done = bench("startup", tmp_path / "none")
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)


def test_memory_is_of_the_process_that_runs(tiny_bundle: Path) -> None:
    found = in_fresh_process("run", tiny_bundle)
    assert 0 < found["imported"] < found["loaded"] <= found["peak"]
    bundle = Bundle.open(tiny_bundle)
    files = sum(record.size for part in bundle.manifest.parts().values() for record in part.files)
    caches = 2 * (2 + 1) * 2 * 2 * (1 + 16 + 5) * 16 * 4  # K and V, layers, rows, heads, positions, width, float32
    assert needed_bytes(bundle) == files + caches


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--draft-length", 9), "--draft-length 9: whole chains have up to 8 here"),
        (("--backend", "trt-rtx"), "the bundle has no TensorRT plans"),
    ],
)
def test_drafts_that_can_not_be_timed_are_refused_before_a_table_begins(
    tiny_bundle: Path, options: tuple[object, ...], words: str
) -> None:
    done = bench("drafting", tiny_bundle, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
