"""`python -m coolsd_trt.tools.bench NAME ...`."""

from __future__ import annotations

import typer

from ..cli.errors import run_app
from . import drafting, lowerings, rules

app = typer.Typer(
    help="Benchmarks; each prints ratios against a baseline of the same run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("rules")(rules.rules)
app.command("lowerings")(lowerings.lowerings)
app.command("drafting")(drafting.drafting)

run_app(app)
