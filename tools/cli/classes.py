"""`--class` by name or id, with a suggestion when it is neither."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ...runtime.errors import InputError


def resolve_class(text: str, names: Sequence[str]) -> int:
    """The class id of a name (any case) or of an id. Raises: InputError with close matches."""
    if not text.strip():
        raise InputError("--class '': it is empty. `coolsd-trt inspect BUNDLE --classes` lists this model's classes.")
    folded = {name.casefold(): i for i, name in reversed(list(enumerate(names)))}
    if text.casefold() in folded:
        return folded[text.casefold()]
    if text.isdecimal() and len(text) < 10 and int(text) < len(names):
        return int(text)
    close = difflib.get_close_matches(text.casefold(), folded, n=3, cutoff=0.5)
    close += [name for name in folded if text.casefold() in name and name not in close][: 3 - len(close)]
    hint = f"Did you mean {', '.join(close)}?" if close else "`coolsd-trt inspect BUNDLE --classes` lists them."
    raise InputError(f"--class {text!r}: no such class. {hint} Expected a name, or an id from 0 to {len(names) - 1}.")
