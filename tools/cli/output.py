"""Where results go: checked before the work starts, and left as it was found when the work fails."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...engines.bundle import is_bundle
from ...runtime.errors import InputError
from ...runtime.files import replacing_file, sweep

STDOUT = Path("-")


@contextmanager
def writable_files(files: Mapping[str, Path | None]) -> Iterator[None]:
    """`writable_folder` of every file, by the option that names it; None and stdout need none.

    Raises: InputError naming the option when two are the same file, or one is a folder, a device or no possible name.
    """
    given = {option: path for option, path in files.items() if path is not None}
    options: dict[str, str] = {}
    for option, path in given.items():
        other = options.setdefault(os.path.realpath(path), option)
        if other != option:
            raise InputError(f"{option} {path}: {other} is the same file. Choose another one.")
    with ExitStack() as stack:
        for option, path in given.items():
            if path != STDOUT:
                _require_file(path, option)
                stack.enter_context(writable_folder(path.parent, option))
        yield


@contextmanager
def writable_folder(folder: Path, option: str) -> Iterator[None]:
    """Make `folder` and prove that it can be written; folders made here vanish again if the block fails.

    Raises: InputError naming the option, also when the folder belongs to a bundle.
    """
    created: list[Path] = []
    try:
        try:
            real = Path(os.path.realpath(folder))
            for place in (real, *real.parents):
                if is_bundle(place):
                    raise InputError(
                        f"{option} {folder}: {place} is a bundle, and holds nothing else. Choose another folder."
                    )
            created = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InputError(
                f"{option} {folder}: can't be written ({error.strerror}). Choose a writable folder."
            ) from None
        yield
    except BaseException:
        _remove_empty(created)
        raise


def write_text(path: Path, text: str) -> None:
    """To a file, all or nothing, or to stdout. Raises: InputError when it can't be written."""
    if path == STDOUT:
        sys.stdout.write(text + "\n")
        return
    with replacing_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _require_file(path: Path, option: str) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"{option} {path}: can't be written ({error.strerror}). Choose another name.") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{option} {path}: it is a folder. Name a file in it.")
    if not stat.S_ISREG(mode):
        raise InputError(f"{option} {path}: it is not a file. Name one; --json also takes - for stdout.")


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
