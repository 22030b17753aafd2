"""The report's page: what held, and the sections it follows from."""

from __future__ import annotations

from pathlib import Path

from .findings import Findings
from .sections import head, lengths_section, residuals_section, schedules_section, trees_section

SECTIONS = (schedules_section, residuals_section, trees_section, lengths_section)


def page(findings: Findings, folder: Path) -> str:
    """Markdown; its plots are written into the folder."""
    parts = [section(findings, folder) for section in SECTIONS]
    claims = "\n".join(f"- {claim}" for part in parts for claim in part.claims)
    return "\n\n".join([head(findings), "## What held", claims, *(part.text for part in parts)]) + "\n"
