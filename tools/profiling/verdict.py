"""What bounds a run, and what would help: a profile in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..calibration.costs import Forecast, PassCosts
from .report import Bandwidth, Report

# Below, what any process needs for itself hides the weights.
NOTABLE_BYTES = 100_000_000


def verdict(report: Report) -> list[str]:
    """Sentences, the most important first."""
    return [*_speculation(report), *_target(report), *_other(report), *_memory(report)]


def forecast(report: Report) -> list[Forecast]:
    """Draft lengths up to the one that ran, from its acceptance by position and the pass costs measured beside it.

    Shorter drafts are taken to be accepted like the first tokens of this one, which is exact for rules whose test at
    a position does not depend on L. Empty where that says nothing: trees, and runs without a draft.
    """
    accepted = [value for value in report.acceptance.by_position if value is not None]
    if report.costs.draft is None or not accepted or report.setup.speculative["tree"] is not None:
        return []
    tokens = (1.0 + np.cumsum(np.cumprod(accepted))).tolist()
    costs = _as_in_the_run(report, len(report.acceptance.by_position), tokens[-1])
    return [costs.forecast(length, emitted) for length, emitted in enumerate(tokens, 1)]


def _as_in_the_run(report: Report, length: int, emitted: float) -> PassCosts:
    """Milliseconds. The run says what drafting and the host take beside a target pass; costs, measured together, what
    passes take. All of drafting grows like the draft's passes; what the host takes does not depend on L."""
    costs, shares = report.costs, _shares(report)
    draft = np.array(costs.draft)
    chains = None if costs.chain is None else np.array(costs.chain)
    alone = PassCosts(np.array(costs.target), draft, draft[0], 0.0, costs.plain_host, chains)
    whole = costs.target[length] / shares["target"]
    slower = shares["draft"] * whole / alone.drafting(length, emitted)
    return replace(
        alone,
        draft_first=slower * draft,
        draft_step=slower * draft[0],
        host=shares["host"] * whole,
        chains=None if chains is None else slower * chains,
    )


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _speculation(report: Report) -> list[str]:
    plain, round_ = _median(report.speed.plain_ms), _median(report.speed.round_ms)
    if report.setup.speculative["rule"] == "ar":
        return [f"Nothing is drafted: a token costs {round_:.2f} ms."]
    tokens, cost = report.acceptance.accepted_length, round_ / plain
    facts = f"accepted length {tokens:.2f}, and a round costs {cost:.2f} plain steps"
    if tokens <= cost:
        sentence = f"Speculation does not pay: {facts} ({tokens / cost:.2f}x). Use --rule ar, or a shorter draft."
    else:
        sentence = f"Speculation pays: {facts}, {tokens / cost:.2f}x over plain autoregression."
    return [sentence, *_better_length(report)]


def _better_length(report: Report) -> list[str]:
    lengths = forecast(report)
    # The forecast is compared with itself: it knows neither ragged ends nor noise.
    if not lengths:
        return []
    best = max(lengths, key=lambda option: option.speed_up)
    gain = best.speed_up / lengths[-1].speed_up
    if gain < 1.02 or best.draft_length == lengths[-1].draft_length:
        return []
    return [f"--draft-length {best.draft_length} should be {gain:.2f}x as fast as {lengths[-1].draft_length}."]


def _target(report: Report) -> list[str]:
    costs, share = report.costs, f"Target passes take {_shares(report)['target']:.0%} of a round"
    sentences = [_reading(share, report.bandwidth)]
    if costs.floor is not None:
        run = min(report.setup.tokens_per_pass, len(costs.floor))
        ratio = costs.target[run - 1] / costs.floor[run - 1]
        if ratio > 1.2:
            sentences.append(
                f"A pass of {run} takes {ratio:.2f}x its matrix products: {1 - 1 / ratio:.0%} of it is attention, "
                "norms and cache writes. A lowering that fuses them, or a shorter cache, helps."
            )
    return sentences


def _reading(share: str, memory: Bandwidth | None) -> str:
    if memory is None:
        return f"{share}."
    reading = f"{memory.plain / 1e9:.1f} of {memory.stream / 1e9:.1f} GB/s in a pass of one token"
    if memory.cached:
        return (
            f"{share}; the weights fit into the processor's cache ({reading}), so arithmetic and calls bound them, not "
            "memory."
        )
    if memory.plain > 0.6 * memory.stream:
        return (
            f"{share} and are bound by reading weights: {reading}. "
            "Fewer bytes (a smaller precision) or more tokens per pass help; more threads do not."
        )
    return f"{share} and read weights at {reading}: arithmetic or overheads bound them."


def _other(report: Report) -> list[str]:
    shares, parts = _shares(report), {part.name: part for part in report.parts}
    sentences = []
    if shares["draft"] > 0.25:
        sentences.append(f"Drafting takes {shares['draft']:.0%} of a round: a shorter or smaller draft helps.")
    if shares["host"] > 0.1:
        work = max((name for name in parts if name.startswith("host/")), key=lambda name: parts[name].share)
        hint = ": a smaller top-k leaves less to do" if work in ("host/warp", "host/verify") else ""
        sentences.append(
            f"The host takes {shares['host']:.0%} of a round, most of it {work} ({parts[work].p50:.2f} ms){hint}."
        )
    occupancy = float(np.mean(report.speed.images_per_pass))
    if occupancy < 0.8 * min(report.setup.batch_size, report.setup.images):
        sentences.append(
            f"{occupancy:.1f} of {report.setup.batch_size} images share a pass on average: the last ones of a batch "
            "run alone."
        )
    return sentences


def _memory(report: Report) -> list[str]:
    memory = report.memory
    if memory.excess < 1.5 or memory.needed < NOTABLE_BYTES:
        return []
    return [f"Opening and running it took {memory.excess:.2f}x the bytes of weights and caches."]


def _shares(report: Report) -> dict[str, float]:
    """Of rounds' time, by phase."""
    return {phase: _share(report, phase) for phase in ("draft", "target", "host")}


def _share(report: Report, phase: str) -> float:
    return sum(part.share for part in report.parts if part.name.startswith(f"{phase}/"))
