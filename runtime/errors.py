"""Exceptions a caller may want to catch; their text is written for the person who made the mistake."""

from __future__ import annotations


class CoolsdError(Exception):
    """Anything this project raises on purpose."""


class InputError(CoolsdError, ValueError):
    """A bad option, file or value. The message names it, what was found, what was expected and the next step."""


class BundleError(InputError):
    """A bundle that is missing, damaged, incomplete or of another schema."""


class BackendError(CoolsdError, RuntimeError):
    """A backend that is not installed, not usable on this machine, or that failed while running."""


class Cancelled(CoolsdError):
    """Generation was stopped by the caller's cancel event; no result exists."""
