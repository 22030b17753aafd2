"""What `generate` leaves behind: PNG files, a JSON report, a summary on the screen."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from ...runtime import GenerationResult
from ...runtime.images import make_grid, save_png
from .console import plain_table, stdout
from .output import write_text


def is_file(out: Path) -> bool:
    """Whether `--out` names one picture rather than a folder."""
    return out.suffix.lower() == ".png"


def save_pictures(result: GenerationResult, out: Path, grid: bool, columns: int | None = None) -> list[Path]:
    """Write the grid (`columns` wide), the single file, or one file per picture into the folder; the paths written."""
    if grid:
        path = out if is_file(out) else out / "grid.png"
        save_png(path, make_grid(result.images, columns), result.parameters)
        return [path]
    if is_file(out):
        save_png(out, result.images[0], result.parameters[0])
        return [out]
    paths = []
    for image, parameters in zip(result.images, result.parameters, strict=True):
        subject = str(parameters.get("class", f"caption {parameters.get('caption')}"))
        slug = re.sub(r"[^a-z0-9]+", "-", subject.casefold())[:60].strip("-")
        paths.append(out / f"{slug}-seed{parameters['seed']}-{parameters['index']}.png")
        save_png(paths[-1], image, parameters)
    return paths


def write_report(result: GenerationResult, path: Path) -> None:
    """Tokens and statistics as JSON, to a file or to stdout."""
    write_text(path, json.dumps(result.as_dict(), indent=1))


def print_summary(result: GenerationResult, written: list[Path], backend: str) -> None:
    """Rule, accepted length, drift, speed, where the time went, and the backend with why it was chosen."""
    settings = result.parameters[0]
    phases = {name: sum(s.seconds[name] for s in result.stats) for name in result.stats[0].seconds}
    drift = result.drift_per_token
    table = plain_table("", "")
    rows = {
        "pictures": str(len(result.images)),
        "rule": settings["rule"] + (" (lossy; --rule lossless is exact)" if result.lossy else " (lossless)"),
        "accepted length": f"{result.accepted_length:.2f} tokens per target pass",
        "drift per token": "not known for this rule" if math.isnan(drift) else f"{drift:.4f} total variation",
        "speed": f"{result.tokens_per_second:.0f} tokens/s, {result.images_per_minute:.1f} pictures a minute",
        "batch": f"{result.shared:.2f} pictures share a target pass, {result.seconds / len(result.images):.2f} s each",
        "time": "  ".join(f"{name} {seconds / result.seconds:.0%}" for name, seconds in phases.items()),
        "written": str(written[0]) if len(written) == 1 else f"{len(written)} files in {written[0].parent}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    stdout.print(table)
    stdout.print(f"backend {backend}", markup=False)
