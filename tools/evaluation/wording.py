"""How figures become sentences: an interval that holds 0 decides nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..bench.statistics import Estimate

WIDTH = 118


def verdict(gaps: Sequence[Estimate], names: Sequence[str]) -> str:
    """Whether differences are below 0, each under its name."""
    return tally([gap.high < 0 for gap in gaps], [gap.low > 0 for gap in gaps], names)


def tally(held: Sequence[bool], opposite: Sequence[bool], names: Sequence[str]) -> str:
    """Where it held, where the opposite did, and where the figures can't tell."""
    words = [decided(*each) for each in zip(held, opposite, strict=True)]
    groups = {
        word: [name for name, own in zip(names, words, strict=True) if own == word]
        for word in ("held", "the opposite held", "undecided")
    }
    told = [
        f"{word} everywhere" if len(own) == len(names) > 1 else f"{word} at {', '.join(own)}"
        for word, own in groups.items()
        if own
    ]
    return "; ".join(told)


def decided(held: bool, opposite: bool) -> str:
    """One comparison in a word or two."""
    return "held" if held else "the opposite held" if opposite else "undecided"


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def paragraph(text: str) -> str:
    """Wrapped for the page, however it is wrapped in the code."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
