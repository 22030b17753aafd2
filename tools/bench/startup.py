"""How long a user waits: for the import, for a bundle, for the first picture; each in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ...runtime.errors import InputError
from .result import Out, Table, publish
from .statistics import ratio_of_medians

BASELINE = "import numpy"
# Each prints the seconds of what it is named after, of a process that has done what comes before.
SCRIPTS = {
    BASELINE: "start(); import numpy; stop()",
    "import coolsd_trt.runtime": "start(); import coolsd_trt.runtime; stop()",
    "Pipeline.load": "from coolsd_trt.runtime import Pipeline; start(); Pipeline.load(bundle); stop()",
    "first picture after loading": (
        "from coolsd_trt.runtime import Pipeline; p = Pipeline.load(bundle); start(); p.generate([0]); stop()"
    ),
    "all of it": "start(); from coolsd_trt.runtime import Pipeline; Pipeline.load(bundle).generate([0]); stop()",
}
CLOCK = """
import sys, time
bundle = sys.argv[1]
def start():
    global began
    began = time.perf_counter()
def stop():
    print(time.perf_counter() - began)
"""


def startup(
    bundle: Annotated[Path, typer.Argument(help="The bundle that is loaded.")],
    turns: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 9,
    out: Out = None,
) -> None:
    """Time import, load and first picture, interleaved; files are in the page cache."""
    seconds: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    for turn in range(-1, turns):  # the first fills the page cache
        for name, script in SCRIPTS.items():
            taken = _run(script, bundle)
            if turn >= 0:
                seconds[name].append(taken)
    rows, figures = [], {}
    for name, values in seconds.items():
        ratio = ratio_of_medians(values, seconds[BASELINE])
        rows.append((name, f"{np.median(values):.3f}", f"{max(values):.3f}", f"{ratio}x"))
        figures[name] = {"seconds": float(np.median(values)), "ratio": asdict(ratio)}
    table = Table(("what", "s", "worst", f"over `{BASELINE}`"), rows)
    publish("Start-up", f"{bundle.name}, medians of {turns} fresh processes", table, figures, out)


def _run(script: str, bundle: Path) -> float:
    done = subprocess.run([sys.executable, "-c", CLOCK + script, str(bundle)], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{bundle}: a process that loads it failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)
