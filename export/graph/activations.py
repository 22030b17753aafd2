"""Activations from primitive operators, which every parser has."""

from __future__ import annotations

import math

from .builder import GraphBuilder


def gelu_tanh(g: GraphBuilder, x: str) -> str:
    """`x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`"""
    cubic = g.op("Mul", g.op("Mul", g.op("Mul", x, x), x), g.scalar(0.044715))
    turn = g.op("Tanh", g.op("Mul", g.op("Add", x, cubic), g.scalar(math.sqrt(2 / math.pi))))
    return g.op("Mul", g.op("Mul", x, g.scalar(0.5)), g.op("Add", turn, g.scalar(1.0)))
