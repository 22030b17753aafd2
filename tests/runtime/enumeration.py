"""The exact law of anything that draws uniforms: every branch of the real code is run, none is sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from coolsd_trt.runtime.sampling import UniformSource

LAST = 1.0 - 2.0**-53


class Script:
    """A uniform source that replays a fixed list, then 0.5 for ever, and counts what was asked of it."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = numbers
        self.asked = 0

    def random(self) -> float:
        self.asked += 1
        return self.numbers[self.asked - 1] if self.asked <= len(self.numbers) else 0.5


def exact_law(
    run: Callable[[UniformSource], Hashable], script: tuple[float, ...] = (), resolution: float = 1e-9
) -> Counter[Hashable]:
    """Outcome -> probability, each break point to `resolution`.

    As a function of its next uniform, with the later ones held at 0.5, the run's outcome must be piecewise constant
    and take no value on two separate intervals; true of acceptance tests and of inverse-CDF draws if the outcome tells
    every token drawn and every test passed. Break points are found by bisection; each piece is followed into the next
    uniform.
    """

    def probe(u: float) -> tuple[Hashable, bool]:
        source = Script(*script, u)
        return run(source), source.asked == len(script) + 1

    law: Counter[Hashable] = Counter()
    for low, high, (outcome, final) in _pieces(probe, 0.0, LAST, resolution):
        if final:
            law[outcome] += high - low
        else:
            for later, mass in exact_law(run, (*script, (low + high) / 2), resolution).items():
                law[later] += (high - low) * mass
    return law


def marginal(law: Counter[Hashable], of: Callable[[Hashable], Hashable]) -> Counter[Hashable]:
    """The law of a function of the outcome."""
    result: Counter[Hashable] = Counter()
    for outcome, mass in law.items():
        result[of(outcome)] += mass
    return result


def _pieces(
    f: Callable[[float], Hashable], low: float, high: float, resolution: float
) -> list[tuple[float, float, Hashable]]:
    """[low, high] cut where f changes, left to right."""
    cuts: list[tuple[float, float, Hashable]] = []

    def refine(a: float, at_a: Hashable, b: float, at_b: Hashable) -> None:
        if at_a == at_b or b - a < resolution:
            if cuts and cuts[-1][2] == at_a:
                cuts[-1] = (cuts[-1][0], b, at_a)
            else:
                cuts.append((a, b, at_a))
            return
        middle = (a + b) / 2
        at_middle = f(middle)
        refine(a, at_a, middle, at_middle)
        refine(middle, at_middle, b, at_b)

    refine(low, f(low), high, f(high))
    return cuts
