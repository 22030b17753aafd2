"""Static trees under the names that EAGLE's, Medusa's and LANTERN's repositories use."""

from __future__ import annotations

import difflib

from .errors import InputError
from .tree import Tree

# A path a word, a child number a digit.
CHOICES = {
    "chain": "0 00 000 0000 00000",
    "mc_sim_7b_63": ("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"),
    "mc_sim_7b_63_balanced": (
        "0 1 2 00 01 02 10 11 12 20 21 000 001 002 010 011 100 101 110 111 0000 0001 0002 00000 00001"
    ),
    "medusa_2_7b_63": (
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 20 21 30 31 40 50 60 70 000 001 002 "
        "003 004 005 006 007 008 010 011 012 013 020 021 030 040 050 100 101 102 110 200 0000 0001 0002 0003 "
        "0010 0020 0100"
    ),
    "naive_extend_57": (
        "0 1 2 3 4 00 01 02 03 10 11 12 20 21 22 30 31 40 000 001 002 003 010 011 012 020 021 022 030 031 100 "
        "101 110 200 0000 0001 0002 0003 0010 0011 0012 0020 0021 0030 0100 0101 0110 0200 00000 00001 00002 "
        "00010 00011 00100 00101 00110 00200"
    ),
    "reverse_balanced_25": (
        "0 1 2 00 01 10 20 000 001 002 010 011 100 0000 0001 0002 0010 0011 00000 00001 00002 00003 00010 00011 00012"
    ),
}
TREES = {name: Tree.from_paths([tuple(map(int, path)) for path in paths.split()]) for name, paths in CHOICES.items()}


def named_tree(name: str) -> Tree:
    """The tree of that name. Raises: InputError that lists the names."""
    if name not in TREES:
        close = difflib.get_close_matches(name, TREES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise InputError(
            f"tree = {name!r}: no such tree.{hint} Expected dynamic, a list of paths, or {', '.join(TREES)}."
        )
    return TREES[name]
