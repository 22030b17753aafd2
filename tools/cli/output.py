"""Where pictures go: checked before the work starts, and left as it was found when the work fails."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ...runtime.errors import InputError

STDOUT = Path("-")


@contextmanager
def writable_folder(folder: Path, option: str) -> Iterator[None]:
    """Make `folder` and prove that it can be written; folders made here vanish again if the block fails.

    Raises: InputError naming the option.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        _remove_empty(created)
        raise InputError(f"{option} {folder}: can't be written ({error.strerror}). Choose a writable folder.") from None
    try:
        yield
    except BaseException:
        _remove_empty(created)
        raise


def writable_report(path: Path | None, option: str = "--json") -> AbstractContextManager[None]:
    """`writable_folder` of the file the option names; nothing for none, or for stdout."""
    return nullcontext() if path is None or path == STDOUT else writable_folder(path.parent, option)


def write_text(path: Path, text: str) -> None:
    """To a file (under a temporary name first), or to stdout."""
    if path == STDOUT:
        sys.stdout.write(text + "\n")
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
