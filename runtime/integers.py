"""Whole numbers from callers, who may hold them in any type that is one."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from .errors import InputError


def integer(name: str, value: Any, least: int | None = None) -> int:
    """`value`, an int or a NumPy integer, as int. Raises: InputError for anything else, or one below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name} = {value!r}: it must be an integer.") from None
    if least is not None and number < least:
        raise InputError(f"{name} = {number}: it must be at least {least}.")
    return number


def integers(name: str, values: Any) -> list[int]:
    """The same of a sequence."""
    if not isinstance(values, Iterable):
        raise InputError(f"{name} = {values!r}: it must be a list of integers.")
    return [integer(f"{name}[{i}]", value) for i, value in enumerate(values)]
