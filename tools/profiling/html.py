"""A profile as one page that needs nothing else: no scripts, no network, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from .charts import columns, dots, lines, share_bar
from .report import Part, Report
from .verdict import forecast

STYLE = Path(__file__).with_name("report.css")
PHASES = {"target": "p-target", "draft": "p-draft", "host": "p-host"}
SMALL = 0.005


def html_page(report: Report) -> str:
    """The whole document."""
    setup = report.setup
    title = f"{setup.bundle}: {setup.speculative['rule']}, {setup.tokens_per_pass} tokens a pass"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(_setting(report))}</p>',
        _tiles(report),
        f"<ul class='verdict'>{''.join(f'<li>{escape(sentence)}</li>' for sentence in report.verdict)}</ul>",
        _round(report),
        '<div class="plots">',
        *(f"<figure><figcaption>{escape(name)}</figcaption>{plot}</figure>" for name, plot in _plots(report)),
        "</div>",
        _tables(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _setting(report: Report) -> str:
    setup = report.setup
    s = setup.sampling
    return (
        f"{setup.precision}, {setup.lowering}, {setup.backend}, {setup.threads} threads on {setup.machine} | "
        f"CFG {s['cfg_scale']:g}, temperature {s['temperature']:g}, top-k {s['top_k']}, top-p {s['top_p']:g} | "
        f"{setup.images} pictures, batch {setup.batch_size}, seed {setup.seed}"
    )


def _tiles(report: Report) -> str:
    speed, width = report.speed, report.bandwidth
    cost = float(np.median(speed.round_ms) / np.median(speed.plain_ms))
    accepted = report.acceptance.accepted_length
    tiles = {
        "tokens per second": f"{speed.tokens_per_second:.1f}",
        "pictures per minute": f"{speed.images_per_minute:.2f}",
        "accepted length": f"{accepted:.2f}",
        "cost of a round, plain steps": f"{cost:.2f}",
        "over plain autoregression": f"{accepted / cost:.2f}x",
    }
    if width is not None:
        tiles["weights read, GB/s of stream"] = f"{width.plain / 1e9:.1f} / {width.stream / 1e9:.1f}"
    drawn = "".join(f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in tiles.items())
    return f'<section class="tiles">{drawn}</section>'


def _round(report: Report) -> str:
    """The bar of a round's parts, by phase, and their table."""
    ordered = sorted(report.parts, key=lambda part: (_phase_rank(part), -part.share))
    segments = [(part.name, part.share, _colour(part), _opacity(part, ordered)) for part in ordered]
    keys = "".join(
        f'<span><i class="{colour}"></i>{name} {_phase_share(report, name):.1%}</span>'
        for name, colour in [*PHASES.items(), ("between phases", "p-rest")]
    )
    rows = [
        (part.name, f"{part.share:.1%}", f"{part.p50:.3f}", f"{part.p90:.3f}", f"{part.p99:.3f}")
        for part in report.parts
        if part.share > SMALL
    ]
    p50, p90, p99 = np.percentile(report.speed.round_ms, [50, 90, 99])
    return (
        f"<h2>A round: {p50:.2f} ms (p90 {p90:.2f}, p99 {p99:.2f})</h2>{share_bar(segments)}"
        f'<p class="keys">{keys}</p>{_table(("part", "share", "p50 ms", "p90 ms", "p99 ms"), rows)}'
    )


def _plots(report: Report) -> Iterable[tuple[str, str]]:
    costs, found, speed = report.costs, report.acceptance, report.speed
    passes: dict[str, Sequence[float]] = {"target pass": costs.target}
    if costs.floor is not None:
        passes["its products alone"] = costs.floor
    yield "What a pass costs, ms", lines(passes, "tokens in the pass (pending and drafted)")
    if found.by_position:
        total = sum(found.histogram)
        labels = [str(i) for i in range(1, len(found.histogram) + 1)]
        texts = [f"{count / total:.0%}" for count in found.histogram]
        yield "Rounds by tokens emitted", columns(labels, found.histogram, texts, "tokens emitted")
        betas = [0.0 if value is None else value for value in found.by_position]
        labels = [str(i) for i in range(1, len(betas) + 1)]
        texts = ["-" if value is None else f"{value:.2f}" for value in found.by_position]
        yield "Acceptance once reached", columns(labels, betas, texts, "draft position")
    lengths = forecast(report)
    if lengths:
        labels = [str(length.draft_length) for length in lengths]
        speeds = [length.speed_up for length in lengths]
        texts = [f"{value:.2f}x" for value in speeds]
        yield "Speed over plain autoregression, forecast", columns(labels, speeds, texts, "draft length")
    clip = 1.5 * float(np.percentile(speed.round_ms, 99))
    yield "Every round, ms", dots(speed.round_ms, "rounds in order", clip)
    if max(speed.images_per_pass) > 1:
        yield (
            "Pictures that share a pass",
            dots(speed.images_per_pass, "target passes in order", max(speed.images_per_pass)),
        )


def _tables(report: Report) -> str:
    memory, setup = report.memory, report.setup
    sizes = [(f"{name} weights", f"{size / 1e6:.1f} MB") for name, size in memory.weights.items()]
    sizes += [(f"{name} cache", f"{size / 1e6:.1f} MB") for name, size in memory.caches.items()]
    sizes += [
        ("process, before loading", f"{memory.base / 1e6:.1f} MB"),
        ("process, peak", f"{memory.peak / 1e6:.1f} MB"),
    ]
    settings = [(name, str(value)) for name, value in {**setup.speculative, **setup.sampling}.items()]
    return (
        f'<div class="plots"><section><h2>Memory</h2>{_table(("", "size"), sizes)}</section>'
        f"<section><h2>Settings</h2>{_table(('', 'value'), settings)}</section></div>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines_ = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{lines_}</table>"


def _phase(part: Part) -> str:
    return part.name.split("/")[0]


def _phase_rank(part: Part) -> int:
    return list(PHASES).index(_phase(part)) if _phase(part) in PHASES else len(PHASES)


def _phase_share(report: Report, name: str) -> float:
    return sum(part.share for part in report.parts if _phase(part) == name)


def _colour(part: Part) -> str:
    return PHASES.get(_phase(part), "p-rest")


def _opacity(part: Part, ordered: Sequence[Part]) -> float:
    """Parts of one phase fade from its largest to its smallest."""
    same = [other for other in ordered if _phase(other) == _phase(part)]
    return 1.0 - 0.6 * same.index(part) / max(1, len(same))
