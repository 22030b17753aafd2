"""`python -m coolsd_trt.tools.bench NAME ...`."""

from __future__ import annotations

import typer

from ..cli.errors import run_app
from . import build_cost, drafting, host, lowerings, memory, passes, rules, startup, step, tables, tokens

app = typer.Typer(
    help="Benchmarks; each prints what it ran on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("step")(step.step)
app.command("rules")(rules.rules)
app.command("build")(build_cost.build_cost)
app.command("passes")(passes.passes)
app.command("host")(host.host)
app.command("startup")(startup.startup)
app.command("memory")(memory.memory)
app.command("tokens")(tokens.tokens)
app.command("tables")(tables.tables)
app.command("lowerings")(lowerings.lowerings)
app.command("drafting")(drafting.drafting)

run_app(app)
