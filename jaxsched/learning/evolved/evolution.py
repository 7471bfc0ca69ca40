"""Antithetic evolution strategies with rank weights (Salimans et al., 2017): only runs that are compared."""

import dataclasses

import numpy as np
from jaxtyping import Float64

SMALLEST = 1e-3  # as Adam's
KEPT = 0.9  # of the average, per generation


@dataclasses.dataclass(frozen=True)
class Strategy:
    """How many pairs of candidates there are, how far from the point, and how it moves: Adam's step and decays."""

    pairs: int
    sigma: float
    step: float
    momentum: float
    squares: float


@dataclasses.dataclass(frozen=True)
class Search:
    """A point and what is known of the way; everything that is needed to go on."""

    point: Float64[np.ndarray, "numbers"]
    average: Float64[np.ndarray, "numbers"]  # of the points so far, the latest count most: it is what is judged
    momentum: Float64[np.ndarray, "numbers"]
    squares: Float64[np.ndarray, "numbers"]
    generation: int = 0


def begin(point: Float64[np.ndarray, "numbers"]) -> Search:
    """At that point."""
    return Search(point, point, np.zeros_like(point), np.zeros_like(point))


def candidates(
    search: Search, rng: np.random.Generator, strategy: Strategy
) -> tuple[Float64[np.ndarray, "pairs numbers"], list]:
    """Directions, and the points on both sides: `+` and `-` of the first, of the second, ..."""
    directions = rng.normal(size=(strategy.pairs, len(search.point)))
    points = [search.point + sign * strategy.sigma * one for one in directions for sign in (1.0, -1.0)]
    return directions, points


def move(
    search: Search,
    directions: Float64[np.ndarray, "pairs numbers"],
    costs: Float64[np.ndarray, "lists candidates"],
    strategy: Strategy,
) -> Search:
    """The next point, away from the candidates that cost most; only their order on each list counts."""
    rank = costs.argsort(kind="stable").argsort(kind="stable") / (costs.shape[-1] - 1) - 0.5
    plus, minus = rank.mean(0).reshape(strategy.pairs, 2).T
    slope = ((plus - minus)[:, None] * directions).mean(0)
    momentum = strategy.momentum * search.momentum + (1.0 - strategy.momentum) * slope
    squares = strategy.squares * search.squares + (1.0 - strategy.squares) * slope**2
    generation = search.generation + 1
    scale = np.sqrt(squares / (1.0 - strategy.squares**generation)) + SMALLEST
    point = search.point - strategy.step * momentum / scale
    average = KEPT * search.average + (1.0 - KEPT) * point
    return Search(point, average, momentum, squares, generation)
