"""A user's mistake becomes one message on stderr and exit code 2; anything else is our bug and keeps its traceback."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from ...runtime.errors import CoolsdError

USER_MISTAKE = 2
_TYPER_INTERRUPTED = 130


def run_app(app: typer.Typer) -> NoReturn:
    """Run a Typer app and exit: 0; 2 after one message (bad input, or Ctrl-C); 1 with a traceback."""
    try:
        app()
    except CoolsdError as error:
        _fail(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}.")
    except KeyboardInterrupt:
        _fail_interrupted()
    except SystemExit as exit_:
        if exit_.code == _TYPER_INTERRUPTED:
            _fail_interrupted()
        raise
    sys.exit(0)


def _fail_interrupted() -> NoReturn:
    _fail("stopped by Ctrl-C; nothing was written.")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USER_MISTAKE)
