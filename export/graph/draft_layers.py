"""An EAGLE-1 draft's own layers, which its step and its chain share."""

from __future__ import annotations

from collections.abc import Callable

from ..weights import DraftWeights
from .builder import GraphBuilder
from .linear import linear
from .transformer import Attend, block


class DraftLayers:
    """The layers with their weights read once."""

    def __init__(self, weights: DraftWeights) -> None:
        self.shape = weights.shape
        self._embedding = weights.token_embedding()
        self._fc, self._bias = weights.fc()
        self._layers = [weights.layer(i) for i in range(weights.shape.layers)]

    def apply(self, g: GraphBuilder, ids: str, features: str, attend: Callable[[int], Attend]) -> str:
        """Ids [B, S] and features [B, S, H] to the predicted features [B, S, H], in the graph's float type.

        attend: what layer i attends with.
        """
        embedded = g.op("Gather", g.weight("embedding", g.real(self._embedding)), ids)
        x = linear(g, g.op("Concat", embedded, features, axis=2), "fc.weight", self._fc)
        if self._bias is not None:
            x = g.op("Add", x, g.weight("fc.bias", g.real(self._bias)))
        for i, layer in enumerate(self._layers):
            x = block(g, self.shape, x, i, layer, attend(i))
        return x
