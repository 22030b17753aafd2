"""The subcommands of `coolsd-trt`, a file each."""

from __future__ import annotations

import typer

from . import build, calibrate, check, evaluate, generate, inspect, profile

app = typer.Typer(
    name="coolsd-trt",
    help="COOL-SD speculative decoding for autoregressive image models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("build")(build.build)
app.command("generate")(generate.generate)
app.command("check")(check.check)
app.command("inspect")(inspect.inspect)
app.command("calibrate")(calibrate.calibrate)
app.command("profile")(profile.profile)
app.command("evaluate")(evaluate.evaluate)
