"""The subcommands of `coolsd-trt`, a file each."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from . import build, calibrate, check, evaluate, generate, inspect, profile
from .console import stdout

app = typer.Typer(
    name="coolsd-trt",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(asked: bool) -> None:
    if asked:
        stdout.print(f"coolsd-trt {version('coolsd-trt')}")
        raise typer.Exit


@app.callback()
def coolsd_trt(
    asked: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and stop.")
    ] = False,
) -> None:
    """COOL-SD speculative decoding for autoregressive image models."""


app.command("build")(build.build)
app.command("generate")(generate.generate)
app.command("check")(check.check)
app.command("inspect")(inspect.inspect)
app.command("calibrate")(calibrate.calibrate)
app.command("profile")(profile.profile)
app.command("evaluate")(evaluate.evaluate)
