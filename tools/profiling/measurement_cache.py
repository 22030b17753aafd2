"""What was measured on this machine, kept so that it is measured once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_cache_path
from pydantic import BaseModel, ValidationError

from ...runtime.errors import InputError
from ...runtime.files import replacing_file

Kept = TypeVar("Kept", bound=BaseModel)


class MeasurementCache:
    """A folder of small JSON files; by default the user's cache folder, never the bundle, which may be read-only.

    An entry that can't be read is measured again, and one that can't be written is not kept. renew: measure again what
    is there, too, say because the machine was busy then.
    """

    def __init__(self, folder: Path | None = None, renew: bool = False) -> None:
        self.renew = renew
        self.folder = folder or user_cache_path("coolsd-trt", appauthor=False) / "measurements"

    def get(self, model: type[Kept], key: Mapping[str, Any], measure: Callable[[], Kept]) -> Kept:
        """The entry of `key`, everything that the measurement depends on; measured if there is none."""
        digest = hashlib.sha256(json.dumps([model.__name__, key], sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{model.__name__.casefold()}-{digest[:24]}.json"
        if not self.renew:
            with suppress(OSError, ValueError, KeyError, TypeError, ValidationError):
                return model.model_validate(json.loads(path.read_text(encoding="utf-8"))["value"])
        value = measure()
        self._store(path, {"key": dict(key), "value": value.model_dump()})
        return value

    def _store(self, path: Path, content: Mapping[str, Any]) -> None:
        with suppress(OSError, InputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing_file(path) as temporary:
                temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
