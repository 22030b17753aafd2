"""A bundle on disk: opened with every check done before anything is deserialised, written all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..runtime.errors import BundleError, InputError
from ..runtime.files import SUFFIX, replacing_file, replacing_folder, sweep
from ..runtime.protocols import ModelInfo
from .manifest import MANIFEST_NAME, PLANS_FOLDER, SCHEMA_VERSION, FileRecord, GraphSpec, Manifest

REBUILD = "Build it again with `coolsd-trt build`."
FILES_NAMED = 5


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
        for part in bundle.manifest.parts().values():
            bundle.check_weights(part)
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

    def check_weights(self, part: GraphSpec) -> None:
        """Raises: BundleError when a graph would read a file that the manifest does not vouch for."""
        data = self.path / f"{part.files[0].name}.data"
        if data.exists() and data.name not in {record.name for record in part.files}:
            raise BundleError(f"{data}: the graph's weights, and the bundle's manifest does not list them. {REBUILD}")

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
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(
            f"{file}: not a readable manifest ({type(error).__name__}: {error}). Delete the folder and build it again."
        ) from None
    if version != SCHEMA_VERSION:
        action = "Install a newer coolsd-trt." if isinstance(version, int) and version > SCHEMA_VERSION else REBUILD
        raise BundleError(f"{file}: schema version {version!r}, this coolsd-trt reads {SCHEMA_VERSION}. {action}")
    try:
        return Manifest.model_validate(content)
    except (ValidationError, InputError) as error:
        raise BundleError(f"{file}: {_first_mistake(error)}. {REBUILD}") from None


def _first_mistake(error: ValidationError | InputError) -> str:
    if isinstance(error, InputError):
        return str(error)
    first = error.errors()[0]
    where = f"field {'.'.join(map(str, first['loc']))!r} is wrong: " if first["loc"] else ""
    return where + first["msg"].removeprefix("Value error, ")


@contextmanager
def write_bundle(out: Path) -> Iterator[Path]:
    """A temporary directory that becomes `out` when the block ends well, and vanishes when it does not.

    Raises: BundleError when something is at `out` that no build wrote; InputError when it can't be written.
    """
    _require_replaceable(out)
    sweep(Path(os.path.realpath(out)).parent)
    with replacing_folder(out) as temporary:
        yield temporary
        # A build takes long enough for somebody to put a file there meanwhile.
        _require_replaceable(out)


def replace_manifest(bundle: Bundle, manifest: Manifest) -> None:
    """Write another manifest over a bundle's, all or nothing. Raises: InputError when it can't be written."""
    with replacing_file(bundle.path / MANIFEST_NAME) as temporary:
        temporary.write_text(manifest.model_dump_json(indent=1), encoding="utf-8")


def is_bundle(folder: Path) -> bool:
    """Whether a build of this or another version wrote the folder, whatever became of its files."""
    return _listed_names(folder) is not None


def record_file(path: Path) -> FileRecord:
    """Name, size and hash of a finished file."""
    return FileRecord(name=path.name, size=path.stat().st_size, sha256=sha256_file(path))


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _require_replaceable(out: Path) -> None:
    """Raises: BundleError unless all there is at `out` is what an earlier build wrote."""
    real = Path(os.path.realpath(out))
    if Path.cwd().is_relative_to(real):
        raise BundleError(
            f"{out}: it is, or holds, the working directory. Name a folder for the bundle, like --out demo."
        )
    if not real.exists() or (real.is_dir() and not any(real.iterdir())):
        return
    listed = _listed_names(real)
    if listed is None:
        raise BundleError(
            f"{out}: exists and is not a bundle; it will not be overwritten. Choose another --out, or delete it."
        )
    files = (path for path in real.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (str(path.relative_to(real)) for path in files if SUFFIX not in path.name)
    # Of plans and what belongs to them, some are not listed: onnxruntime's, and kernel timings.
    others = sorted(name for name in names if name not in listed and not name.startswith(f"{PLANS_FOLDER}/"))
    if others:
        more = f" and {len(others) - FILES_NAMED} more" if len(others) > FILES_NAMED else ""
        raise BundleError(
            f"{out}: besides a bundle it holds {', '.join(others[:FILES_NAMED])}{more}, which the build would delete. "
            "Move them away, or choose another --out."
        )


def _listed_names(folder: Path) -> set[str] | None:
    """The manifest and every file it names, whatever its schema; None when the folder has no manifest of a build."""
    try:
        content = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not {"schema_version", "build_key", "target"} <= set(content):
        return None
    names, todo = {MANIFEST_NAME}, [content]
    while todo:
        value: Any = todo.pop()
        if isinstance(value, dict) and {"name", "sha256"} <= set(value):
            names.add(str(value["name"]))
        todo += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return names
