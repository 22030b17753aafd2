"""The page of all results, from the files that the benchmarks left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ...runtime.errors import InputError
from ..cli.output import write_text
from .result import Table

HEAD = "# Measured\n\nMade by `make bench` from `docs/results/`; medians, with 95 % bootstrap intervals in brackets.\n"


def tables(
    results: Annotated[Path, typer.Argument(help="Folder of the benchmarks' JSON files.")],
    out: Annotated[Path, typer.Option(help="The page to write.")],
) -> None:
    """Write one page with the table of every result in the folder."""
    sections = []
    for path in sorted(results.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        if "table" in report:
            table = Table(report["columns"], report["table"]).markdown()
            sections.append(f"## {report['title']}\n\n{report['setting']}; {report['machine']}.\n\n{table}\n")
    if not sections:
        raise InputError(f"{results}: no results in it. Expected the files that `--json` of the benchmarks writes.")
    write_text(out, "\n".join([HEAD, *sections]))
