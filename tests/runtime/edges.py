"""Pairs of distributions (p, q) at the edges of what can happen."""

from __future__ import annotations

EDGES = {
    "q zero where p is not": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.2, 0.8, 0.0]),
    "p zero where q is not": ([0.0, 0.5, 0.5, 0.0], [0.7, 0.1, 0.1, 0.1]),
    "disjoint": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]),
    "p one-hot": ([0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]),
    "q one-hot": ([0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0]),
    "both one-hot, equal": ([0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]),
    "both one-hot, different": ([0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
    "p = q": ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
}
