"""Where the command line prints: results to stdout, progress and notes to stderr."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

# Names and paths are printed as they are, whatever brackets and colons are in them.
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
# Piped output has no width of its own: tables must not be squeezed to 80 columns there.
stdout = Console(width=None if Console().is_terminal else 120, **_PLAIN)
stderr = Console(stderr=True, **_PLAIN)


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A table without decoration; every column after the first is right-aligned."""
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def human_size(size: int) -> str:
    """Bytes for people: 1.2 MB."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"
