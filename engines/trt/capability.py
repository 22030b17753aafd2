"""Can TensorRT read a graph? Polygraphy asks its parser, in a process of its own: a crash stays there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...runtime.errors import BackendError, InputError
from ...runtime.files import SUFFIX
from ..cuda import probe_gpu
from .build import fix_cache_length
from .flavour import FLAVOURS, Flavour, load_module

_POLYGRAPHY = "import sys; from polygraphy.tools import main; sys.exit(main())"
# Polygraphy's table says operator and node in columns of their own.
_PLACE = re.compile(r"In node -?\d+ with name: .*? and operator: .*?\(\w*\): ")
_COLUMNS = 4
# Any number will do where the plan's own will stand.
_SOME_LENGTH = 256


@dataclass(frozen=True)
class Refusal:
    """Nodes of one operator that TensorRT refuses for one reason; operator is empty when it is the graph itself."""

    operator: str
    nodes: tuple[str, ...]
    reason: str


def choose_flavour(backend: str) -> Flavour:
    """The TensorRT to ask: the one named, or with "auto" the one that is installed.

    Raises: InputError for another backend; BackendError when it is not installed, or needs a GPU that is not there.
    """
    if backend == "auto":
        installed = [flavour for flavour in FLAVOURS.values() if find_spec(flavour.module) is not None]
        if not installed:
            ways = ", or ".join(flavour.install for flavour in FLAVOURS.values())
            raise BackendError(
                f"checking a graph needs TensorRT, and neither flavour is installed. Install one: {ways}."
            )
        backend = installed[0].name
    flavour = next((flavour for flavour in FLAVOURS.values() if flavour.name == backend), None)
    if flavour is None:
        raise InputError(f"--backend {backend}: graphs are checked for TensorRT. Use {' or '.join(FLAVOURS)}.")
    if not flavour.cross_builds:
        try:
            probe_gpu()
        except BackendError as error:
            raise BackendError(f"backend {backend}: {error} The backend trt-rtx reads graphs without a GPU.") from None
    load_module(flavour)
    return flavour


def refusals(graph: Path, flavour: Flavour) -> list[Refusal]:
    """What this TensorRT refuses in an ONNX file; nothing when it reads all of it.

    Raises: InputError for a file that is no graph; BackendError when Polygraphy is missing or fails.
    """
    if find_spec("polygraphy") is None:
        raise BackendError(f"polygraphy is not installed. Install it: {flavour.install}.")
    environment = {**os.environ, "POLYGRAPHY_USE_TENSORRT_RTX": str(int(flavour.name == "trt-rtx"))}
    with _readable(graph) as path, TemporaryDirectory() as scratch:
        command = [sys.executable, "-c", _POLYGRAPHY, "inspect", "capability", str(path), "--output", scratch]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise BackendError(f"{graph}: polygraphy failed (exit code {done.returncode}): {' '.join(last)}")
        table = Path(scratch) / "results.txt"
        return _read_table(table.read_text(encoding="utf-8")) if table.is_file() else []


@contextmanager
def _readable(graph: Path) -> Iterator[Path]:
    """The file, or a copy beside it (where its weights are found) in which the cache has the length of a number."""
    model = _load(graph)
    if not fix_cache_length(model, _SOME_LENGTH):
        yield graph
        return
    copy = graph.with_name(f".{graph.stem}.{os.getpid()}{SUFFIX}.onnx")
    try:
        copy.write_bytes(model.SerializeToString())
        yield copy
    finally:
        copy.unlink(missing_ok=True)


def _load(graph: Path) -> Any:
    try:
        import onnx
    except ImportError:
        raise BackendError("onnx is not installed. Install it: pip install 'coolsd-trt[export]'.") from None
    if graph.suffix != ".onnx":
        raise InputError(f"--graph {graph}: expected an .onnx file.")
    if not graph.is_file():
        raise InputError(f"--graph {graph}: no such file.")
    try:
        model = onnx.load(str(graph), load_external_data=False)
    except Exception as error:  # protobuf's exceptions differ between its versions
        raise InputError(f"--graph {graph}: not a readable ONNX file ({error}).") from None
    if not model.graph.node:
        raise InputError(f"--graph {graph}: an ONNX file without nodes.")
    return model


def _read_table(text: str) -> list[Refusal]:
    """Rows "stack | operator | node | reason"; a reason may go on in the lines that follow."""
    rows: list[list[str]] = []
    for line in text.splitlines()[3:]:
        cells = [cell.strip() for cell in line.split(" | ", _COLUMNS - 1)]
        if len(cells) == _COLUMNS:
            rows.append(cells)
        elif rows:
            rows[-1][-1] += f" {line.strip()}"
    grouped: dict[tuple[str, str], list[str]] = {}
    for _, operator, node, reason in rows:
        grouped.setdefault((operator, _plain(reason)), []).append(node)
    return [Refusal(operator, tuple(nodes), reason) for (operator, reason), nodes in grouped.items()]


def _plain(reason: str) -> str:
    """TensorRT's reason without the place, which is in the other columns."""
    text = _PLACE.sub("", reason)
    return "TensorRT has no such operator" if text == "UNSUPPORTED_NODE: false" else text
