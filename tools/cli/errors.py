"""A user's mistake becomes one message on stderr and exit code 2; anything else is our bug and keeps its traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import NoReturn

USER_MISTAKE = 2
_TYPER_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_app(app: Callable[[], object]) -> NoReturn:
    """Run a Typer app and exit: 0; 2 after one message (bad input, a full disk, or Ctrl-C); 1 with a traceback."""
    # A path may hold bytes that are no text.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _fail_interrupted()
    except SystemExit as exit_:
        if exit_.code == _TYPER_INTERRUPTED:
            _fail_interrupted()
        raise
    except OSError as error:
        if error.filename is None and error.errno not in _NO_ROOM:
            raise
        if error.filename is None:
            # About what was printed, and Python would print the rest as it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"{error.filename or 'the output'}: {error.strerror}.")
    except Exception as error:
        from ...runtime.errors import CoolsdError

        if not isinstance(error, CoolsdError):
            raise
        _fail(str(error))
    sys.exit(0)


def _fail_interrupted() -> NoReturn:
    _fail("stopped by Ctrl-C; nothing was written.")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(USER_MISTAKE)
