"""A long run: after the first pictures nothing is bound or opened again, and memory does not grow."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from coolsd_trt.engines.loader import LoadedEngines, load_engines
from coolsd_trt.engines.ort_draft import OrtDraft
from coolsd_trt.runtime import Pipeline, SpeculativeConfig
from coolsd_trt.runtime.drafting import StaticDrafter

ROUNDS = 1000


@pytest.fixture
def engines(tiny_bundle: Path) -> Iterator[LoadedEngines]:
    loaded = load_engines(tiny_bundle, "ort-cpu", threads=1)
    yield loaded
    loaded.close()


def resident() -> int:
    """Bytes of memory the process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("how", ["fused", "stepwise"])
def test_a_thousand_rounds_take_no_memory(engines: LoadedEngines, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "stepwise":
        monkeypatch.setattr("coolsd_trt.runtime.pipeline.static_drafter", StaticDrafter)
    pipeline, config = Pipeline(engines), SpeculativeConfig(rule="cool", draft_length=3)

    def run(rounds: int) -> None:
        while rounds > 0:
            result = pipeline.generate([0, 1, 2], seed=rounds, batch_size=2, speculative=config)
            rounds -= sum(stats.target_passes - 1 for stats in result.stats)

    run(ROUNDS // 4)  # allocators have their pools, and all but the rarest shapes have been seen
    draft = engines.draft
    assert isinstance(draft, OrtDraft)
    bindings = (engines.target._bound, draft._bound, draft._chain_bound)
    bound = [dict(known) for known in bindings]
    assert bool(draft._chain_bound) == (how == "fused") != bool(draft._bound)
    gc.collect()
    tracemalloc.start()
    before, held = resident(), tracemalloc.get_traced_memory()[0]
    run(ROUNDS)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - held
    tracemalloc.stop()
    for known, earlier in zip(bindings, bound, strict=True):
        assert all(known[shape] is made for shape, made in earlier.items())
    assert grown < 64 * 1024  # 65 bytes a round
    assert resident() - before < 4 * 2**20
