"""Whether a bundle is already there: its key covers the sources, the options and the code that wrote it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engines.bundle import Bundle
from ..engines.manifest import Manifest
from ..runtime.errors import BundleError

HOUSE = Path(__file__).parent.parent


def build_key(fingerprints: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """Equal key, equal bundle. Args: fingerprints by role; options: whatever else shapes the bundle, as JSON values."""
    content = {"sources": dict(fingerprints), "options": dict(options), "exporter": _exporter_digest()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def up_to_date(out: Path, key: str) -> Manifest | None:
    """The manifest of the intact bundle at `out`, if its key is this one."""
    try:
        manifest = Bundle.open(out).manifest
    except BundleError:
        return None
    return manifest if manifest.build_key == key else None


def _exporter_digest() -> str:
    """Changes whenever the code that writes bundles does, so a stale bundle is never mistaken for a fresh one."""
    files = [*(HOUSE / "export").rglob("*.py"), HOUSE / "engines" / "manifest.py", HOUSE / "runtime" / "condition.py"]
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()
