"""Files and folders that appear whole or not at all, and leave nothing behind when their writer is killed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .errors import InputError

try:
    import fcntl
except ImportError:  # Windows: what a killed writer leaves stays there
    fcntl = None  # type: ignore[assignment]

# Ends every temporary name. One that nobody holds a lock on was left by a writer that was killed.
SUFFIX = ".coolsd-tmp"
# Of a file name, in bytes, that fit into a temporary one of 255.
LONGEST_STEM = 200


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A new, empty file that takes the place of `path` when the block ends well, and vanishes when it does not.

    Where `path` is a link, what it points to is replaced. Raises: InputError naming `path` when it can't be written.
    """
    real = Path(os.path.realpath(path))
    try:
        with _temporary(real, folder=False) as temporary:
            yield temporary
            temporary.replace(real)
    except OSError as error:
        raise _blamed(path, real, error) from None


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """As `replacing_file`; the folder that was there is kept until the new one is complete, then removed."""
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(real, folder=True) as temporary:
            yield temporary
            _swap(temporary, real)
    except OSError as error:
        raise _blamed(path, real, error) from None


def sweep(folder: Path) -> None:
    """Remove from `folder` what writers that were killed have left there."""
    with _locked(folder) as held:
        for path in folder.glob(f"*{SUFFIX}") if held else ():
            with _locked(path, wait=False) as free:
                if free:
                    _remove(path)


@contextmanager
def _temporary(path: Path, folder: bool) -> Iterator[Path]:
    """A new file or folder beside `path`, locked as long as it is written."""
    temporary = _beside(path)
    with ExitStack() as stack:
        with _locked(path.parent):  # no sweep between making and locking it
            if folder:
                temporary.mkdir()
            else:
                temporary.touch(exist_ok=False)
            stack.callback(_remove, temporary)
            stack.enter_context(_locked(temporary))
        yield temporary


def _swap(new: Path, path: Path) -> None:
    # A folder that is not empty can't be renamed over: the old one moves aside first, so no mixture is ever visible.
    old = _beside(path)
    with _locked(path.parent):
        there = path.exists()
        if there:
            path.rename(old)
        try:
            new.rename(path)
        except OSError:
            if there:
                old.rename(path)
            raise
    _remove(old)


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a file or folder against other processes and threads; False where that can't be had."""
    descriptor = -1
    held = False
    with suppress(OSError):
        if fcntl is not None:
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
    try:
        yield held
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _beside(path: Path) -> Path:
    stem = path.name.encode(errors="surrogateescape")[:LONGEST_STEM].decode(errors="ignore")
    return path.with_name(f".{stem}.{secrets.token_hex(4)}{SUFFIX}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _blamed(path: Path, real: Path, error: OSError) -> Exception:
    """What to raise for an error in the block: it is about `path`, unless it names a file that the block read."""
    name = error.filename
    if name is None or SUFFIX in str(name) or real.is_relative_to(str(name)):
        return InputError(
            f"{path}: can't be written ({error.strerror or error}). Choose another place, or make room there."
        )
    return error
