"""What `generate` leaves behind: PNG files, a JSON report, a summary on the screen."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...runtime import GenerationResult, InputError
from ...runtime.images import make_grid, save_png
from ...runtime.rules import get_rule
from .console import plain_table, stdout
from .output import write_text

# Of a file name, in characters; four bytes each at most.
LONGEST_SLUG = 50
# Endings of which nobody means a folder.
_OTHER_FORMATS = (".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".svg", ".pdf")


def is_file(out: Path) -> bool:
    """Whether `--out` names one picture rather than a folder. Raises: InputError for formats that are not written."""
    suffix = out.suffix.lower()
    if suffix in _OTHER_FORMATS:
        raise InputError(f"--out {out}: pictures are written as PNG. Expected FILE.png, or a folder.")
    return suffix == ".png"


def file_of(out: Path, grid: bool) -> Path | None:
    """The one file that `--out` means; None when it is a folder of pictures."""
    return out if is_file(out) else out / "grid.png" if grid else None


def save_pictures(result: GenerationResult, out: Path, grid: bool, columns: int | None = None) -> list[Path]:
    """Write the grid (`columns` wide), the single file, or one file per picture into the folder; the paths written."""
    path = file_of(out, grid)
    if path is not None:
        if grid:
            save_png(path, make_grid(result.images, columns), result.parameters)
        else:
            save_png(path, result.images[0], result.parameters[0])
        return [path]
    paths = []
    for image, parameters in zip(result.images, result.parameters, strict=True):
        paths.append(out / f"{_slug(parameters)}-seed{parameters['seed']}-{parameters['index']}.png")
        save_png(paths[-1], image, parameters)
    return paths


def _slug(parameters: Mapping[str, Any]) -> str:
    """The class or caption as the beginning of a file name, in its own script."""
    subject = str(parameters.get("class", f"caption {parameters.get('caption')}"))
    slug = re.sub(r"[\W_]+", "-", subject.casefold())[:LONGEST_SLUG].strip("-")
    return slug or f"class-{parameters.get('class_id')}"


def write_report(result: GenerationResult, path: Path) -> None:
    """Tokens and statistics as JSON, to a file or to stdout."""
    write_text(path, json.dumps(result.as_dict(), indent=1))


def print_summary(result: GenerationResult, written: list[Path], backend: str) -> None:
    """Rule, accepted length, drift, speed, where the time went, and the backend with why it was chosen."""
    rule = get_rule(result.parameters[0]["rule"])
    phases = {name: sum(s.seconds[name] for s in result.stats) for name in result.stats[0].seconds}
    drift = result.drift_per_token
    table = plain_table("", "")
    rows = {
        "pictures": str(len(result.images)),
        "rule": rule.name + (f" (lossy; exact with {rule.lossless_setting})" if result.lossy else " (lossless)"),
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
    stdout.print(f"backend {backend}")
