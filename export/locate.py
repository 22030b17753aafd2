"""From a path to an open checkpoint: files, folders, shards, Hugging Face caches, and things that are no checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..runtime.errors import InputError
from .checkpoint import Checkpoint, listed
from .safetensors_file import SafetensorsCheckpoint
from .torch_file import TorchCheckpoint

# In a folder, the first of these that exists; else its only weights file.
PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
# How files begin that people mistake for checkpoints.
FOREIGN = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself. Fetch it: git lfs pull",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"RIFF": "a WebP picture",
    b"GIF8": "a GIF picture",
    b"<": "a web page or XML: a download that failed",
}


def open_checkpoint(path: Path, companions: tuple[str, ...] = ()) -> Checkpoint:
    """Open a checkpoint.

    Args: path: a .safetensors, .pt, .pth, .bin or .ckpt file, a shard index, a folder with one of them, or a model's
    folder in a Hugging Face cache. companions: further files beside it that belong to its fingerprint.
    Raises: InputError naming what was found and what was expected.
    """
    file = _weights_file(path)
    beside = [file.with_name(name) for name in ("config.json", *companions)]
    present = [companion for companion in beside if companion.is_file()]
    config = read_json(present[0]) if present and present[0].name == "config.json" else {}
    if not isinstance(config, dict):
        raise InputError(f"{present[0]}: expected a JSON object, found {type(config).__name__}.")
    sharded = file.name.endswith(".index.json")
    weights = _shards(file) if sharded else [file]
    if sharded:
        present.insert(0, file)
    kind = SafetensorsCheckpoint if all([_is_safetensors(part) for part in weights]) else TorchCheckpoint
    return kind(file, weights, config, present)


def read_json(path: Path) -> Any:
    """Raises: InputError when the file is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error}).") from None


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.exists():
        raise InputError(f"{path}: no such file or directory. Expected a checkpoint.")
    path = _snapshot(path)
    for name in PREFERRED:
        if (path / name).is_file():
            return path / name
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if len(files) == 1:
        return files[0]
    if files:
        raise InputError(f"{path}: several checkpoints in it: {listed([f.name for f in files])}. Name one of them.")
    raise InputError(f"{path}: no checkpoint in it. Expected {', '.join(PREFERRED)}, or one {'/'.join(SUFFIXES)} file.")


def _snapshot(path: Path) -> Path:
    """The current snapshot of a model's folder in a Hugging Face cache; any other folder is itself."""
    snapshots = path / "snapshots"
    if not snapshots.is_dir():
        return path
    main = path / "refs" / "main"
    try:
        named = snapshots / main.read_text(encoding="ascii").strip() if main.is_file() else None
    except (OSError, ValueError) as error:
        raise InputError(f"{main}: not a commit's name ({error}). Name one of {snapshots}/*.") from None
    if named is not None and named.is_dir():
        return named
    found = sorted(snapshots.iterdir())
    if len(found) != 1:
        raise InputError(f"{path}: {len(found)} snapshots and no refs/main to choose by. Name one of {snapshots}/*.")
    return found[0]


def _shards(index: Path) -> list[Path]:
    content = read_json(index)
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names:
        raise InputError(f"{index}: not a shard index. Expected a JSON object with a weight_map.")
    others = [name for name in names.values() if not isinstance(name, str) or Path(name).name != name]
    if others:
        raise InputError(f"{index}: its weight_map has {others[0]!r}. Expected names of files beside it.")
    shards = [index.parent / name for name in sorted(set(names.values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InputError(
            f"{index}: {len(missing)} of {len(shards)} shards are missing: {listed(missing)}. "
            f"Put them into {index.parent}."
        )
    return shards


def _is_safetensors(file: Path) -> bool:
    """Whether the content is safetensors (else torch's). Raises: InputError for files that are something else."""
    with file.open("rb") as stream:
        head = stream.read(64)
    if not head:
        raise InputError(f"{file}: the file is empty. Expected a checkpoint.")
    if head[8:9] == b"{":
        return True
    for start, what in FOREIGN.items():
        if head.startswith(start):
            raise InputError(f"{file}: this is {what}. Expected a checkpoint ({', '.join(SUFFIXES)}).")
    return file.suffix == ".safetensors"
