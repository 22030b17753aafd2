"""Fixtures: a tiny pair of checkpoints, its bundle, and the golden folder where it is laid beside the project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Pipeline

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements of test bundles stay out of the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, draft/ and image_tokenizer/: 8 tokens, a 4x4 grid, 5 classes. Read only."""
    return tiny.make_checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def tiny_bundle(tiny_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of `tiny_checkpoints`. Read only."""
    out = tmp_path_factory.mktemp("bundles") / "tiny"
    build_bundle(tiny_request(tiny_checkpoints), out)
    return out


@pytest.fixture(scope="module")
def pipeline(tiny_bundle: Path) -> Iterator[Pipeline]:
    with Pipeline.load(tiny_bundle, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def golden() -> Path:
    folder = ROOT.parent / "shared" / "golden"
    if not folder.is_dir():
        pytest.skip(f"the golden reference data is not there: {folder}")
    return folder


def tiny_request(checkpoints: Path) -> BuildRequest:
    return BuildRequest(
        checkpoints / "target", checkpoints / "image_tokenizer", checkpoints / "draft", max_draft_length=8
    )
