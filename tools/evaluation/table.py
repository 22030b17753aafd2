"""The figures of an evaluation as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...runtime.rules import RULES
from ...runtime.stats import number_or_none
from ..bench.contenders import Contender
from ..bench.statistics import Estimate

TITLES = {
    "accepted_length": "accepted length",
    "drift_per_token": "drift per token",
    "speed_up": "speed vs ar",
    "target_passes": "passes a picture",
    "frechet": "Fréchet distance",
    "class_accuracy": "class accuracy",
    "fid": "FID",
    "clip_score": "CLIP score",
}


@dataclass(frozen=True)
class Row:
    """A setting and its figures, named as in `TITLES`."""

    contender: Contender
    figures: Mapping[str, Estimate]

    @property
    def lossy(self) -> bool:
        """Whether the rule can leave the target's distribution."""
        return RULES[self.contender.config.rule].lossy


def markdown(rows: Sequence[Row], names: Sequence[str] | None = None) -> str:
    """A table with the figures of these names; all by default."""
    names = names or [name for name in TITLES if name in rows[0].figures]
    lines = ["| setting | " + " | ".join(TITLES[name] for name in names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        lines.append(f"| {row.contender.name} | " + " | ".join(shown(row.figures[name]) for name in names) + " |")
    return "\n".join(lines)


def shown(figure: Estimate) -> str:
    """For people: no interval around a value that can't vary."""
    return f"{figure.value:g}" if figure.low == figure.high else str(figure)


def as_json(rows: Sequence[Row], setting: Mapping[str, Any]) -> str:
    """Settings and figures; null where a figure is unknown."""
    content = {
        "setting": dict(setting),
        "rows": [
            {
                "name": row.contender.name,
                "settings": row.contender.config.model_dump(mode="json"),
                "lossy": row.lossy,
                **{name: _plain(figure) for name, figure in row.figures.items()},
            }
            for row in rows
        ],
    }
    return json.dumps(content, indent=1)


def as_csv(rows: Sequence[Row]) -> str:
    """One line a setting; every figure with its bounds, empty where unknown."""
    settings = list(rows[0].contender.config.model_dump())
    figures = [f"{name}{part}" for name in rows[0].figures for part in ("", "_low", "_high")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", *settings, "lossy", *figures])
    for row in rows:
        values = [value for figure in row.figures.values() for value in asdict(figure).values()]
        plain = ["" if math.isnan(value) else repr(value) for value in values]
        config = row.contender.config.model_dump(mode="json").values()
        writer.writerow([row.contender.name, *config, row.lossy, *plain])
    return text.getvalue()


def _plain(figure: Estimate) -> dict[str, float | None]:
    return {part: number_or_none(value) for part, value in asdict(figure).items()}
