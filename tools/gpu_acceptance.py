"""The first thing to run on a machine with a GPU: parity, then the speed of plain and speculative decoding.

    python -m coolsd_trt.tools.gpu_acceptance BUNDLE... --out report/

Installs and builds nothing; writes report.json and report.md. With `--backend ort-cpu` it is a dry run.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from ..engines.bundle import read_manifest
from ..engines.cuda import probe_gpu
from ..engines.loader import load_engines
from ..engines.parity import TOLERANCES, compare_engines
from ..runtime import Pipeline, SpeculativeConfig
from ..runtime.errors import BackendError

RULES = ("ar", "lossless", "cool")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="class-conditional bundles with plans for this GPU")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--pictures", type=int, default=4, help="pictures per measurement")
    parser.add_argument("--minutes", type=float, default=10, help="no new measurement starts after that")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    report: dict[str, Any] = {"machine": describe_machine(), "bundles": []}
    for bundle in options.bundles:
        report["bundles"].append(examine(bundle, options.backend, options.pictures, deadline))
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
        (options.out / "report.md").write_text(markdown(report), encoding="utf-8")
    print(markdown(report))


def describe_machine() -> dict[str, Any]:
    """The GPU, or why there is none."""
    try:
        gpu = probe_gpu()
    except BackendError as error:
        return {"gpu": None, "reason": str(error), "python": platform.python_version()}
    facts = {"compute_capability": gpu.compute_capability, "memory": gpu.memory}
    return {"gpu": gpu.name, **facts, "python": platform.python_version()}


def examine(bundle: Path, backend: str, pictures: int, deadline: float) -> dict[str, Any]:
    """Parity with the CPU and tokens per second of each rule on one bundle."""
    manifest = read_manifest(bundle)
    with closing(load_engines(bundle, backend)) as subject, closing(load_engines(bundle, "ort-cpu")) as reference:
        found: dict[str, Any] = {"bundle": bundle.name, "backend": subject.backend, "reason": subject.backend_reason}
        parity = compare_engines(subject, reference, TOLERANCES[manifest.target.precision])
    found["precision"] = manifest.target.precision
    found["parity"] = [vars(result) for result in parity]
    found["speed"] = measure(bundle, backend, pictures, deadline)
    return found


def measure(bundle: Path, backend: str, pictures: int, deadline: float) -> list[dict[str, Any]]:
    """Each rule alone and in a batch, after one picture to warm up."""
    rows: list[dict[str, Any]] = []
    with Pipeline.load(bundle, backend, verify=False) as pipeline:
        for batch_size in sorted({1, pictures}):
            for rule in RULES:
                if time.monotonic() > deadline:
                    return rows
                options: dict[str, Any] = {"speculative": SpeculativeConfig(rule=rule), "batch_size": batch_size}
                # The warm-up needs the batch that is measured: kernels and graphs belong to a shape.
                pipeline.generate([0] * batch_size, **options)
                made = pipeline.generate([0] * pictures, seed=1, **options)
                tokens = sum(stats.n_tokens for stats in made.stats)
                rows.append(
                    {
                        "rule": rule,
                        "batch_size": batch_size,
                        "tokens_per_second": tokens / made.seconds,
                        "seconds_per_picture": made.seconds / pictures,
                        "accepted_length": made.accepted_length,
                    }
                )
    return rows


def markdown(report: dict[str, Any]) -> str:
    machine = report["machine"]
    lines = [f"# {machine['gpu'] or 'No GPU: ' + machine['reason']}", ""]
    for entry in report["bundles"]:
        lines += [f"## {entry['bundle']} ({entry['precision']}) on {entry['backend']}", ""]
        lines += ["| part | output | largest difference | deviation | |", "|---|---|---|---|---|"]
        for p in entry["parity"]:
            verdict = "same" if p["passed"] else "DIFFERS"
            lines.append(f"| {p['part']} | {p['output']} | {p['difference']:.2g} | {p['scale']:.2g} | {verdict} |")
        lines += ["", "| rule | batch | tokens/s | s a picture | tokens per pass |", "|---|---|---|---|---|"]
        for row in entry["speed"]:
            figures = (row["tokens_per_second"], row["seconds_per_picture"], row["accepted_length"])
            lines.append(f"| {row['rule']} | {row['batch_size']} | " + " | ".join(f"{x:.2f}" for x in figures) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
