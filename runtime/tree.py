"""The shape of a draft: which drafted token continues which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

# Far beyond what pays; masks grow with the square.
MAX_NODES = 4096


@dataclass(frozen=True)
class Tree:
    """Node 0 is the root, the pending token; node n > 0 is a drafted token that continues `parents[n]` < n.

    Siblings are tested in the order of their numbers. A chain is the tree in which every node has one child.
    """

    parents: tuple[int, ...]

    @classmethod
    @cache
    def chain(cls, length: int) -> Tree:
        """`length` drafted tokens in a row; 0 is the root alone."""
        return cls(tuple(range(-1, length)))

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> Tree:
        """A static tree from its choices: [2, 0] is the first child of the root's third child.

        Nodes are numbered by depth, then lexicographically, as EAGLE (arXiv 2401.15077) and Medusa do.
        Raises: InputError naming the first path that is malformed, double, or whose parent or elder sibling is missing.
        """
        if not isinstance(paths, (list, tuple)):
            raise InputError(f"tree: {paths!r} is not a list of paths. Expected one such as [[0], [1], [0, 0]].")
        if len(paths) > MAX_NODES:
            raise InputError(f"tree: {len(paths)} paths. Expected at most {MAX_NODES}.")
        given = [_checked_path(path) for path in paths]
        if not given:
            raise InputError("tree: no paths in it. Expected a list of paths such as [[0], [1], [0, 0]].")
        number: dict[tuple[int, ...], int] = {(): 0}
        for path in sorted(given, key=lambda path: (len(path), path)):
            elder = (*path[:-1], path[-1] - 1)
            if path in number:
                raise InputError(f"tree: path {list(path)} is there twice.")
            if path[:-1] not in number:
                raise InputError(f"tree: path {list(path)} continues {list(path[:-1])}, which is missing.")
            if path[-1] and elder not in number:
                raise InputError(f"tree: path {list(path)} has no elder sibling {list(elder)}. Count children from 0.")
            number[path] = len(number)
        return cls((-1, *(number[path[:-1]] for path in number if path)))

    @property
    def size(self) -> int:
        """Nodes, the root included: tokens of one target pass."""
        return len(self.parents)

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """[size] steps from the root."""
        return np.asarray(self.lineage.sum(axis=1) - 1, dtype=np.int64)

    @cached_property
    def depth(self) -> int:
        """L: drafted tokens that one pass can accept."""
        return int(self.depths.max())

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Per node, in the order in which they are tested."""
        found: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            found[parent].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def lineage(self) -> NDArray[np.bool_]:
        """[size, size] the tree mask: a node attends to itself and its ancestors."""
        seen = np.eye(self.size, dtype=bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            seen[node] |= seen[parent]
        return seen

    @cache  # noqa: B019 - trees are few, and live as long as the process
    def truncated(self, depth: int) -> Tree:
        """The nodes down to `depth`; the tree's must be numbered by depth."""
        return Tree(self.parents[: int((self.depths <= depth).sum())])


def _checked_path(path: Any) -> tuple[int, ...]:
    is_path = (
        isinstance(path, (list, tuple)) and len(path) > 0 and all(type(rank) is int and rank >= 0 for rank in path)
    )
    if not is_path:
        raise InputError(f"tree: {path!r} is not a path. Expected a list of child numbers from 0, such as [0, 2].")
    return tuple(path)
