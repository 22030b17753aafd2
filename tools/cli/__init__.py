"""The `coolsd-trt` command: one file per subcommand."""

from __future__ import annotations

import typer

from . import build, calibrate, check, evaluate, generate, inspect, profile
from .errors import run_app

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


def main() -> None:
    """Entry point of the console script."""
    run_app(app)
