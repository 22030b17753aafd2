"""Bundles of released sizes with random weights, built once."""

from __future__ import annotations

from pathlib import Path

from ...engines.bundle import Bundle
from ...export.build import BuildRequest, build_bundle
from ...export.checkpoint import Checkpoint
from ...export.random_weights import RandomCheckpoint, random_checkpoints
from ..cli.console import stderr


def random_bundle(size: str, folder: Path, grid: int | None = None) -> Bundle:
    """Target, draft and image decoder of a listed size; grid: another number of image tokens per side."""
    out = folder / (size if grid is None else f"{size}-{grid}x{grid}")
    with stderr.status(f"build {out}"):
        made = checkpoints(size, grid)
        build_bundle(BuildRequest(made["target"], made["image_decoder"], made["draft"], neighbors=0), out)
    return Bundle.open(out, verify=False)


def checkpoints(size: str, grid: int | None = None) -> dict[str, Checkpoint]:
    """What `random_bundle` is built from, by role."""
    made = random_checkpoints(size, seed=0)
    target = made["target"]
    if grid is not None:
        config = {**target.config, "name": f"{target.path.name}-{grid}x{grid}", "block_size": grid**2}
        made["target"] = RandomCheckpoint(target.path.name, target.shapes, 0, config)
    return made
