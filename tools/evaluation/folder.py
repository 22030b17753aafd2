"""What an evaluation has measured so far, on disk: it can be stopped at any moment and goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...export.checkpoint import listed
from ...runtime.errors import InputError
from ...runtime.files import replacing_file
from ..bench.contenders import Contender, Sample, Workload

SETTINGS, MEASURED, PICTURES = "settings.json", "measured.jsonl", "pictures"


class RunFolder:
    """`settings.json`; `measured.jsonl`, a line a batch with every setting's figures of every picture; `pictures/`."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Nothing is written yet. Raises: InputError when it holds a run with other settings, or something else."""
        self.path = path
        self._settings = settings
        self._lines = path / MEASURED
        found = path / SETTINGS
        if found.is_file():
            require_same(found, _read_settings(found), settings)
        elif path.exists() and any(path.iterdir()):
            raise InputError(f"--run {path}: the folder holds something else. Choose another one.")

    def begin(self) -> None:
        """Keep the settings, before anything else is kept."""
        self.path.mkdir(parents=True, exist_ok=True)
        with replacing_file(self.path / SETTINGS) as temporary:
            temporary.write_text(json.dumps(self._settings, indent=1), encoding="utf-8")

    def finished(self, workload: Workload) -> dict[int, dict[str, Sample]]:
        """The workload's batches that are done, by first picture, with every row's sample.

        A last line that was cut off is dropped: its batch is measured again.
        """
        text = self._lines.read_text(encoding="utf-8") if self._lines.is_file() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            os.truncate(self._lines, len(whole.encode()))
        done = {}
        for record in map(json.loads, whole.splitlines()):
            samples = {name: _read(sample) for name, sample in record["rows"].items()}
            # A run for another number of pictures may have ended in a smaller batch.
            if len(next(iter(samples.values())).tokens) == workload.size(record["first"]):
                done[record["first"]] = samples
        return done

    def append(self, first: int, samples: Mapping[str, Sample]) -> None:
        """Keep a batch that all rows have made; one write, so that a line is there or is not."""
        line = json.dumps({"first": first, "rows": {name: _plain(sample) for name, sample in samples.items()}})
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def picture(self, row: Contender, index: int) -> Path:
        """Where a picture of a row is kept."""
        digest = hashlib.sha256(row.name.encode()).hexdigest()[:6]
        slug = re.sub(r"[^a-z0-9.]+", "-", row.name.lower())[:60].strip("-")
        return self.path / PICTURES / f"{slug}-{digest}" / f"{index:05d}.png"


def _plain(sample: Sample) -> dict[str, list[Any]]:
    """For JSON, which has no NaN."""
    return {**vars(sample), "drift": [None if math.isnan(drift) else drift for drift in sample.drift]}


def _read(record: Mapping[str, list[Any]]) -> Sample:
    return Sample(**{**record, "drift": [math.nan if drift is None else drift for drift in record["drift"]]})


def require_same(file: Path, found: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raises: InputError telling where the settings `found` in a file are others than `settings`."""
    told = list(_differences(found, json.loads(json.dumps(settings))))
    if told:
        raise InputError(
            f"{file}: made with other settings ({listed(told, 4)}). "
            "Use the same options to go on, or another --run folder."
        )


def _read_settings(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not readable ({error}). Remove the folder, or choose another --run.") from None


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name in {**found, **expected}:
        old, new = found.get(name), expected.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{name}: ")
        elif old != new:
            yield f"{prefix}{name}: " + " instead of ".join("nothing" if v is None else _brief(v) for v in (old, new))


def _brief(value: Any) -> str:
    return "a setting" if isinstance(value, dict) else json.dumps(value)
