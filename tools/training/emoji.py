"""The picture data: fetch the Noto emoji package from npm, check it, and turn it into one array of 64x64 pictures."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...runtime.errors import InputError
from .loop import write_atomically

PACKAGE = "emoji-datasource-google@16.0.0"
PACKAGE_SHA256 = "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438"
PICTURE_SIZE = 64
DATA_NAME, CLASSES_NAME = "emoji.npz", "classes.json"
_IMAGE_FOLDER = "package/img/google/64/"
_SKIN_TONES = {"1F3FB", "1F3FC", "1F3FD", "1F3FE", "1F3FF"}
_IGNORED_CODES = _SKIN_TONES | {"FE0F", "200D", "2640", "2642", "27A1"}
_SAME_CONCEPT = {
    **dict.fromkeys(("1F468", "1F469"), "1F9D1"),  # man, woman -> person
    **dict.fromkeys(("1F466", "1F467"), "1F9D2"),  # boy, girl -> child
    **dict.fromkeys(("1F474", "1F475"), "1F9D3"),  # old man, old woman -> older person
    **dict.fromkeys(("1F934", "1F478"), "1FAC5"),  # prince, princess -> person with crown
    "1F57A": "1F483",  # the two dancers
    "1F936": "1F385",  # the two Christmas figures
}


@dataclass(frozen=True)
class EmojiData:
    """N pictures: images uint8 [N, 64, 64, 3]; labels, bases int64 [N]; held_out bool [N]; names str [N]."""

    images: np.ndarray
    labels: np.ndarray
    bases: np.ndarray
    held_out: np.ndarray
    names: np.ndarray
    classes: tuple[str, ...]
    categories: tuple[str, ...]

    @classmethod
    def load(cls, folder: Path) -> EmojiData:
        """Read what `prepare` wrote. Raises InputError if it is not there."""
        for name in (DATA_NAME, CLASSES_NAME):
            if not (folder / name).is_file():
                raise InputError(
                    f"{folder / name} is missing. Prepare the pictures first: training data --out {folder}"
                )
        classes = json.loads((folder / CLASSES_NAME).read_text(encoding="utf-8"))
        with np.load(folder / DATA_NAME, allow_pickle=False) as z:
            arrays = {k: z[k] for k in ("images", "labels", "bases", "held_out", "names")}
        names = tuple(c["name"] for c in classes)
        return cls(**arrays, classes=names, categories=tuple(c["category"] for c in classes))


def fetch(archive: Path | None, folder: Path, sha256: str = PACKAGE_SHA256) -> Path:
    """Path of the package archive: `archive`, or a fresh `npm pack` into `folder`. The checksum is verified first.

    Raises InputError if npm is missing or fails, or if the archive is absent or differs from the pinned release.
    """
    if archive is None:
        archive = _npm_pack(folder)
    if not archive.is_file():
        raise InputError(f"--archive {archive}: no such file. Leave the option out to fetch it with npm.")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise InputError(
            f"{archive} is not {PACKAGE}: SHA-256 found {found}, expected {sha256}. "
            "Delete it and run again without --archive to fetch it with npm."
        )
    return archive


def prepare(archive: Path, out_dir: Path, held_out_fraction: float = 0.05) -> EmojiData:
    """Composite all pictures on white and write emoji.npz and classes.json, atomically.

    Class = index in the sorted list of sub-categories. All skin-tone and gender variants of one emoji share a `base`
    and land on the same side of the split.
    """
    entries, pictures = _read_archive(archive)
    rows = [row for row in _rows(entries) if row["image"] in pictures]
    classes = sorted({(row["class"], row["category"]) for row in rows})
    class_id = {name: i for i, (name, _) in enumerate(classes)}
    labels = np.array([class_id[row["class"]] for row in rows], np.int64)
    base_id = {base: i for i, base in enumerate(sorted({row["base"] for row in rows}))}
    bases = np.array([base_id[row["base"]] for row in rows], np.int64)
    data = EmojiData(
        images=np.stack([_on_white(pictures[row["image"]], row["image"]) for row in rows]),
        labels=labels,
        bases=bases,
        held_out=split_by_base(labels, bases, held_out_fraction),
        names=np.array([row["name"] for row in rows]),
        classes=tuple(name for name, _ in classes),
        categories=tuple(category for _, category in classes),
    )
    _write(data, out_dir)
    return data


def split_by_base(labels: np.ndarray, bases: np.ndarray, fraction: float) -> np.ndarray:
    """bool [N]: held out or not, decided per base, spread evenly over the classes, never a whole class.

    Within a class the bases are ordered by a hash, so adding pictures elsewhere moves nothing.
    """
    first_label: dict[int, int] = {}
    for label, base in zip(labels.tolist(), bases.tolist(), strict=True):
        first_label.setdefault(base, label)
    chosen: set[int] = set()
    owed = 0.0
    for label in sorted(set(first_label.values())):
        members = [b for b, own in first_label.items() if own == label]
        members.sort(key=lambda b: hashlib.sha256(f"{label}/{b}".encode()).digest())
        owed += fraction * len(members)
        take = min(int(owed), len(members) - 1)
        chosen.update(members[:take])
        owed -= take
    return np.isin(bases, sorted(chosen))


def base_of(unified: str) -> str:
    """The emoji's concept: its code points without skin tone, gender sign and direction, people made neutral."""
    codes = [_SAME_CONCEPT.get(code, code) for code in unified.upper().split("-")]
    kept = [code for code in codes if code not in _IGNORED_CODES]
    return "-".join(kept) or unified


def _rows(entries: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    for entry in entries:
        shared = {"class": entry["subcategory"], "category": entry["category"], "base": base_of(entry["unified"])}
        name = entry.get("name") or entry["short_name"]
        yield {**shared, "image": entry["image"], "name": name.lower()}
        for tone, variant in entry.get("skin_variations", {}).items():
            yield {**shared, "image": variant["image"], "name": f"{name.lower()} ({tone.lower()})"}


def _on_white(png: bytes, name: str) -> np.ndarray:
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    if picture.size != (PICTURE_SIZE, PICTURE_SIZE):
        raise InputError(
            f"{name} is {picture.size[0]}x{picture.size[1]} pixels, expected {PICTURE_SIZE}x{PICTURE_SIZE}."
        )
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    return np.asarray(Image.alpha_composite(white, picture).convert("RGB"))


def _read_archive(archive: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    entries, pictures = None, {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                wanted = member.name.startswith(_IMAGE_FOLDER) or member.name == "package/emoji.json"
                content = tar.extractfile(member) if wanted else None
                if content is None:
                    continue
                if member.name == "package/emoji.json":
                    entries = json.loads(content.read())
                else:
                    pictures[member.name.removeprefix(_IMAGE_FOLDER)] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise InputError(f"{archive} cannot be read as a tar archive ({error}). Fetch it again.") from error
    if not entries or not pictures:
        raise InputError(
            f"{archive}: expected package/emoji.json and {_IMAGE_FOLDER}*.png, found {len(pictures)} pictures."
        )
    return entries, pictures


def _npm_pack(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(
            f"npm is not installed. Install Node.js, or download {PACKAGE} and pass it with --archive FILE.tgz."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [npm, "pack", PACKAGE, "--silent", "--pack-destination", scratch]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(scratch).glob("*.tgz"))
        if outcome.returncode or not found:
            raise InputError(
                f"`npm pack {PACKAGE}` failed: {outcome.stderr.strip() or 'no archive written'}. Pass --archive."
            )
        return found[0].replace(folder / found[0].name)


def _write(data: EmojiData, out_dir: Path) -> None:
    out_dir.mkdir(parents=True, exist_ok=True)
    counts = Counter(data.labels.tolist())
    classes = [
        {"id": i, "name": name, "category": category, "pictures": counts[i]}
        for i, (name, category) in enumerate(zip(data.classes, data.categories, strict=True))
    ]
    text = json.dumps(classes, indent=1)
    write_atomically(out_dir / CLASSES_NAME, lambda p: p.write_text(text, encoding="utf-8"))
    arrays = {k: getattr(data, k) for k in ("images", "labels", "bases", "held_out", "names")}
    write_atomically(out_dir / DATA_NAME, lambda p: np.savez_compressed(p, **arrays))
