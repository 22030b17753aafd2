"""What a draft proposes for one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .law import Law
from .tree import Tree

NOTHING = -1


@dataclass(frozen=True)
class Proposal:
    """Tokens on a tree. tokens: [tree.size], the pending token first; NOTHING where the draft had no token to offer.

    q: by node, the law its children were drawn from, without replacement. The children of a node that q lacks were
    not drawn but chosen: each is verified as drawn from the law that holds nothing else.
    """

    tree: Tree
    tokens: NDArray[np.int64]
    q: dict[int, Law] = field(default_factory=dict)

    @classmethod
    def empty(cls, tree: Tree, pending: int) -> Proposal:
        """Nothing but the root."""
        tokens = np.full(tree.size, NOTHING, dtype=np.int64)
        tokens[0] = pending
        return cls(tree, tokens)

    def offer(self, node: int, tokens: Sequence[int], q: Law | None) -> None:
        """Set the children of a node; the last ones stay empty when there are fewer tokens. q: None = chosen."""
        self.tokens[list(self.tree.children[node][: len(tokens)])] = tokens
        if q is not None:
            self.q[node] = q

    def candidates(self, node: int) -> list[int]:
        """The children of a node that hold a token, in the order of their tests."""
        return [child for child in self.tree.children[node] if self.tokens[child] != NOTHING]
