"""`python -m coolsd_trt.tools.bench NAME ...`."""

from __future__ import annotations

import typer

from ..cli.errors import run_app
from . import build_cost, rules, steps

app = typer.Typer(
    help="Benchmarks; each prints what it ran on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("rules")(rules.rules)
app.command("build")(build_cost.build_cost)
app.command("steps")(steps.steps)

run_app(app)
