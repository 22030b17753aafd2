"""The `coolsd-trt` command."""

from __future__ import annotations

from .errors import run_app


def main() -> None:
    """Entry point of the console script."""
    run_app(_run)


def _run() -> None:
    # Importing takes long enough to be interrupted.
    from .commands import app

    app()
