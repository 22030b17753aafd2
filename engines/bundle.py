"""A bundle on disk: opened with every check done before anything is deserialised, written all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from ..runtime.errors import BundleError, InputError
from ..runtime.protocols import ModelInfo
from .manifest import MANIFEST_NAME, SCHEMA_VERSION, FileRecord, Manifest

REBUILD = "Build it again with `coolsd-trt build`."


class Bundle:
    """A directory written by `coolsd-trt build`."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path, *, verify: bool = True) -> Bundle:
        """Read the manifest and check the files it lists: presence and size always, hashes when `verify`.

        Raises: BundleError naming the file, what was found and what was expected.
        """
        bundle = cls(path, read_manifest(path))
        for record in bundle.manifest.files():
            bundle.check(record, verify=verify)
        return bundle

    def file(self, record: FileRecord) -> Path:
        return self.path / record.name

    @property
    def info(self) -> ModelInfo:
        """The facts the runtime works with."""
        m = self.manifest
        return ModelInfo(
            name=m.name,
            vocab_size=m.target.vocab_size,
            hidden_size=m.target.hidden_size,
            prefix_length=m.prefix_length,
            grid=m.grid,
            image_size=m.image_decoder.image_size,
            max_draft_length=m.max_draft_length,
            condition=m.condition,
            sampling=m.sampling,
            speculative=m.speculative,
        )

    def check(self, record: FileRecord, *, verify: bool = True) -> None:
        """Raises: BundleError when the file is missing, has another size or (`verify`) other content."""
        path = self.file(record)
        if not path.is_file():
            raise BundleError(f"{path}: the file is missing, and the bundle's manifest lists it. {REBUILD}")
        size = path.stat().st_size
        if size != record.size:
            raise BundleError(
                f"{path}: {size} bytes, the manifest says {record.size}. "
                f"The file is truncated or was replaced. {REBUILD}"
            )
        if verify and (found := sha256_file(path)) != record.sha256:
            raise BundleError(
                f"{path}: sha256 is {found[:12]}..., the manifest says {record.sha256[:12]}.... "
                f"The file is damaged or was replaced. {REBUILD}"
            )


def read_manifest(path: Path) -> Manifest:
    """Raises: BundleError for a path that is no bundle, or a manifest that is damaged or of a newer schema."""
    file = path / MANIFEST_NAME
    if not path.is_dir():
        raise BundleError(f"{path}: no such bundle. Expected a directory written by `coolsd-trt build`.")
    if not file.is_file():
        raise BundleError(f"{path}: no {MANIFEST_NAME} in it. Expected a directory written by `coolsd-trt build`.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version = content["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{file}: not a readable manifest ({error!r}). {REBUILD}") from None
    if version != SCHEMA_VERSION:
        action = "Install a newer coolsd-trt." if isinstance(version, int) and version > SCHEMA_VERSION else REBUILD
        raise BundleError(f"{file}: schema version {version!r}, this coolsd-trt reads {SCHEMA_VERSION}. {action}")
    try:
        return Manifest.model_validate(content)
    except (ValidationError, InputError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(map(str, first["loc"]))
        raise BundleError(f"{file}: field {where!r} is wrong: {first['msg']}. {REBUILD}") from None


@contextmanager
def write_bundle(out: Path) -> Iterator[Path]:
    """A temporary directory that becomes `out` when the block ends well, and vanishes when it does not.

    Raises: BundleError when `out` exists and is not a bundle, or its parent can't be written.
    """
    if out.exists() and not (out / MANIFEST_NAME).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise BundleError(f"{out}: exists and is not a bundle; it will not be overwritten. Choose another --out.")
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise BundleError(f"{out}: can't be written ({error.strerror}). Choose a writable --out.") from None
    try:
        yield temporary
        _replace_directory(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_manifest(bundle: Bundle, manifest: Manifest) -> None:
    """Write another manifest over a bundle's, under a temporary name first. Raises: BundleError when it can't."""
    file = bundle.path / MANIFEST_NAME
    temporary = file.with_name(f".{MANIFEST_NAME}.{os.getpid()}.tmp")
    try:
        temporary.write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise BundleError(f"{file}: can't be written ({error.strerror}). Make the bundle writable.") from None
    finally:
        temporary.unlink(missing_ok=True)


def record_file(path: Path) -> FileRecord:
    """Name, size and hash of a finished file."""
    return FileRecord(name=path.name, size=path.stat().st_size, sha256=sha256_file(path))


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _replace_directory(new: Path, out: Path) -> None:
    # A non-empty directory can't be renamed over: move the old one aside first, so no mixture is ever visible.
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
