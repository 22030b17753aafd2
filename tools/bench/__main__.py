"""`python -m coolsd_trt.tools.bench NAME ...`."""

from __future__ import annotations

import typer

from ..cli.errors import run_app
from . import host, memory, rules, startup, step, tables, tokens

app = typer.Typer(
    help="Benchmarks; each prints ratios against a baseline of the same run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("step")(step.step)
app.command("rules")(rules.rules)
app.command("host")(host.host)
app.command("startup")(startup.startup)
app.command("memory")(memory.memory)
app.command("tokens")(tokens.tokens)
app.command("tables")(tables.tables)

run_app(app)
