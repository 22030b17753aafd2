"""Shared pieces of the training tests: where the golden files are, and a tiny fabricated picture package."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch", reason="training needs the [torch] extra")
pytest.importorskip("safetensors", reason="training needs the [torch] extra")

GOLDEN = Path(__file__).resolve().parents[3].parent / "shared" / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden checkpoints, beside the repository."""
    if not GOLDEN.is_dir():
        pytest.skip(f"golden checkpoints not found at {GOLDEN}")
    return GOLDEN


def _png(colour: tuple[int, int, int, int], size: int = 64) -> bytes:
    pixels = np.zeros((size, size, 4), np.uint8)
    pixels[size // 4 : -size // 4, size // 4 : -size // 4] = colour
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def _entries() -> list[dict]:
    entries = []
    for k in range(30):
        code = f"1F{400 + k}"
        toned = {
            tone: {"unified": f"{code}-{tone}", "image": f"{code.lower()}-{tone.lower()}.png"}
            for tone in ("1F3FB", "1F3FF")
        }
        entries.append({
            "name": f"THING {k}", "short_name": f"thing_{k}", "unified": code, "image": f"{code.lower()}.png",
            "category": "Animals & Nature" if k % 2 else "Flags", "subcategory": "beast" if k % 2 else "banner",
            "skin_variations": toned if k % 3 == 0 else {},
        })  # fmt: skip
    return entries


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(archive, SHA-256) of a package with 30 emoji in two sub-categories, every third with two skin tones."""
    path = tmp_path_factory.mktemp("package") / "emoji.tgz"
    entries = _entries()
    files = {"package/emoji.json": json.dumps(entries).encode()}
    for k, entry in enumerate(entries):
        variants = [entry["image"], *(v["image"] for v in entry["skin_variations"].values())]
        for image in variants:
            files[f"package/img/google/64/{image}"] = _png((8 * k, 120, 60, 255 if k else 128))
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()
