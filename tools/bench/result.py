"""What a benchmark leaves: a table for people, the figures behind it as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..cli.output import write_text
from .machine import machine

Out = Annotated[Path | None, typer.Option("--json", help="Write every figure to this file.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of everything that is compared.")]
Bundles = Annotated[Path, typer.Option(help="Folder where bundles of random weights are built, and found again.")]
DEFAULT_BUNDLES = Path("bundles/bench")


@dataclass(frozen=True)
class Table:
    """columns: heads. rows: cells of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        head, *body = (f"| {' | '.join(line)} |" for line in (self.columns, *self.rows))
        return "\n".join([head, "|---" * len(self.columns) + "|", *body])


def publish(title: str, setting: str, table: Table, figures: Any, out: Path | None) -> None:
    """Print the table; write it and `figures` to `out`."""
    typer.echo(f"{title}: {setting}\n\n{table.markdown()}\n")
    if out is not None:
        report = {
            "title": title,
            "setting": setting,
            "machine": machine(),
            "columns": list(table.columns),
            "table": [list(row) for row in table.rows],
            "figures": figures,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(report, indent=1))
