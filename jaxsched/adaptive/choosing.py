"""Who gets how many GPUs, best in sum: by marginal gain, in Pollux' sum and in Sia's (docs/semantics.md, section 13).

By marginal gain every job has a value for each choice that it may have, and a GPU type has so many GPUs. Begin with
nothing. Again and again make the jump, of one job to more GPUs, that gains most for each GPU and still fits. With one
type, while all best jumps fit, that is where jobs stand at the lowest price of a GPU at which demand fits: each takes
the number with the largest value less price times GPUs. The price is found by bisection, the few jumps beyond it
singly. With several types each has a price. They begin where nobody wants anything, and fall one after another. A lower
price of one type takes demand from others and never adds to it, so what fitted still fits.

Pollux (Qiao et al., OSDI 2021) makes the power mean of speedups best, Sia (Jayaram Subramanya et al., SOSP 2023) a sum
over choices of GPUs and GPU type: `sia` exactly, on the host, `sia_greedy` by prices and jumps, in the program.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int

from jaxsched.adaptive.tables import widths
from jaxsched.adaptive.view import Allocation, View
from jaxsched.pytree import call_on_host

_HALVINGS = (7, 10)  # of the range of prices, as a ratio, of one type and of several; jumps find what is left
_RANGE = 2.0**24
_SWEEPS = 3  # over the prices of several types


def by_gain(
    value: Float64[Array, "J C"], cost: Int[Array, "C"], total: Int[Array, "T"], kind: Sequence[int] | None = None
) -> Int[Array, "J"]:
    """The choice of every job.

    Args:
        value: of every choice; -inf where a job may not have it. The first choice is to have nothing.
        cost: GPUs of every choice; with one type rising from 0.
        total: GPUs that there are, of every type.
        kind: type of every choice; None: there is one.
    """
    types = np.zeros(value.shape[1], int) if kind is None else np.asarray(kind)
    asked = _Asked(value.T, cost[:, None], jnp.asarray(types == np.arange(total.shape[0])[:, None]), total)
    return _jumps(asked, _at_lowest_prices(asked))


class _Asked(NamedTuple):
    """Choices before jobs: arrays over jobs run on vectors."""

    value: Float64[Array, "C J"]
    cost: Int[Array, "C 1"]
    of_type: Bool[Array, "T C"]
    total: Int[Array, "T"]

    def demand(self, chosen: Int[Array, "J"]) -> Int[Array, "T"]:
        """GPUs of each type that the choices of all jobs take."""
        return jnp.where(self.of_type, self.cost[:, 0], 0)[:, chosen].sum(1)


def _at_lowest_prices(asked: _Asked) -> Int[Array, "J"]:
    """What jobs choose at prices at which demand fits, hardly above the lowest such prices.

    The choice is kept from when it was found to fit: worked out again it could differ, at a price so near to a tie.
    """
    types, jobs = asked.total.shape[0], asked.value.shape[1]
    gain = (asked.value[1:] - asked.value[:1]) * (1.0 / jnp.maximum(asked.cost[1:], 1))  # a product is cheaper
    highest = 2.0 * jnp.maximum(jnp.where(jnp.isfinite(gain), gain, 0.0).max(), 1e-9)

    def ask(t: Array, price: Array, prices: Float64[Array, "T"]) -> tuple[Array, Array]:
        of_choice = jnp.where(asked.of_type, prices.at[t].set(price)[:, None], 0.0).sum(0)
        chosen = _first_best(asked.value - of_choice[:, None] * asked.cost)[1]  # ties: fewer GPUs
        return chosen, (asked.demand(chosen) <= asked.total).all()

    def lower(i: Array, carry: tuple) -> tuple:
        prices, kept = carry
        t = i % types

        def halve(i: Array, carry: tuple) -> tuple:
            low, high, kept = carry
            price = jnp.where(i == 0, 0.0, jnp.sqrt(low * high))  # at no price all may fit
            chosen, fits = ask(t, price, prices)
            low = jnp.where(fits, low, jnp.maximum(price, low))
            return low, jnp.where(fits, price, high), jnp.where(fits, chosen, kept)

        begun = highest / _RANGE, prices[t], kept
        _, high, kept = jax.lax.fori_loop(0, _HALVINGS[types > 1] + 1, halve, begun)
        return prices.at[t].set(high), kept

    begun = jnp.full(types, highest), jnp.zeros(jobs, jnp.int32)
    return jax.lax.fori_loop(0, types * (_SWEEPS if types > 1 else 1), lower, begun)[1]


def _first_best(scores: Float64[Array, "C J"]) -> tuple[Float64[Array, "J"], Int[Array, "J"]]:
    """The highest score of every job and which it is, the first of equals. Unlike `argmax` it runs on vectors."""
    best, choices = scores.max(0), scores.shape[0]
    rows = jnp.arange(choices, dtype=jnp.int32)[:, None]
    return best, jnp.where(scores == best, rows, choices - 1).min(0)


def _jumps(asked: _Asked, chosen: Int[Array, "J"]) -> Int[Array, "J"]:
    jobs = jnp.arange(chosen.shape[0])
    on = jnp.argmax(asked.of_type, axis=0)

    def best(chosen: Int[Array, "J"]) -> tuple[Array, Array, Array]:
        has, worth = asked.cost[chosen, 0], asked.value[chosen, jobs]
        free = (asked.total - asked.demand(chosen))[on]
        more = asked.cost - jnp.where(on[:, None] == on[chosen], has, 0)
        may = (more > 0) & (more <= free[:, None]) & jnp.isfinite(asked.value)
        gains, to = _first_best(jnp.where(may, (asked.value - worth) / jnp.maximum(more, 1), -jnp.inf))
        job = jnp.argmax(gains)
        return gains[job], job, to[job]

    def jump(carry: tuple) -> tuple:
        gained, job, to = best(carry[0])
        return jnp.where((jobs == job) & (gained > 0), to, carry[0]), gained > 0

    return jax.lax.while_loop(lambda carry: carry[1], jump, (chosen, jnp.array(True)))[0]


LEAST_SPEEDUP, NOTHING = 1e-3, -1e3  # the lowest speedup that counts, and the value of no GPUs


def pollux(view: View) -> Allocation:
    """Qiao et al., OSDI 2021: the best power mean (exponent -1) of speedups over the fair share, by marginal gain.

    A change counts as the speedup times (age - restarts) / (age + a restart), unless the job holds no GPUs. A job at
    most doubles the most that it has had. The same objective as theirs; their optimiser is a genetic algorithm.
    """
    choices = whole_choices(view)
    return Allocation(gpus=choices[by_gain(harm(view, choices), choices, view.total[:1])])


def whole_choices(view: View) -> Int[Array, "C"]:
    """Nothing, and the numbers of GPUs that `whole_nodes` places."""
    return jnp.asarray([0, *widths(view.widths[0], view.of_plans.shape[-1] - 1)], jnp.int32)


def harm(view: View, choices: Int[Array, "C"]) -> Float64[Array, "J C"]:
    """Minus one over the speedup of every choice, as `pollux` counts it."""
    goodput = view.goodput_at(choices)
    share = view.total[0] // jnp.maximum(view.active.sum(), 1)
    fair = view.goodput_at(jnp.clip(share, view.least_gpus, view.most_gpus)[:, None])[:, 0]
    spent_s = view.restarts * view.restart_s
    kept = jnp.maximum(view.age_s - spent_s, 0.0) / (view.age_s + view.restart_s)
    changes = (view.gpus > 0)[:, None] & (choices != view.gpus[:, None])
    speedup = over(goodput, fair) * jnp.where(changes, kept[:, None], 1.0)
    most = jnp.minimum(view.most_gpus, jnp.maximum(2 * view.widest, view.least_gpus))
    may = (choices >= view.least_gpus[:, None]) & (choices <= most[:, None]) & (goodput > 0)
    value = jnp.where(may & view.active[:, None], -1.0 / jnp.maximum(speedup, LEAST_SPEEDUP), -jnp.inf)
    return jnp.where(choices == 0, NOTHING, value)


def over(goodput: Float64[Array, "J C"], base: Float64[Array, "J"]) -> Float64[Array, "J C"]:
    """Quotients that are rounded once. Over a column XLA multiplies by its inverse; equal jobs would then differ."""
    return goodput / jax.lax.optimization_barrier(jnp.broadcast_to(base[:, None], goodput.shape))


WITHOUT_GPUS = 1.1  # what a job without GPUs costs; with the fewest it costs 1
_TINY = 1e-9
_NEAR = 2e-3  # of the bound: the choices that are tried first
_CLOSE = 1e-3  # to the least bound: better prices cost more than they spare
_STEPS = 30  # of the ellipsoid at most, times the square of types: each shrinks it by a constant share


def choices_of(view: View) -> tuple[np.ndarray, np.ndarray]:
    """GPUs and GPU type of every choice; the first is to have nothing. Both int[C]."""
    most = view.of_plans.shape[-1] - 1
    pairs = [(0, 0)] + [(gpus, t) for t, width in enumerate(view.widths) for gpus in widths(width, most)]
    gpus, kind = np.array(pairs).T
    return gpus, kind


def values(view: View) -> Float64[Array, "J C"]:
    """Minus what every choice of a job costs in the sum; -inf: it may not have it."""
    gpus, kind = choices_of(view)
    goodput = view.of_plans[view.plan[:, None], view.epoch[:, None], kind, gpus]
    held = view.gpus > 0
    least = jnp.where(gpus >= view.least_gpus[:, None], gpus, np.max(gpus)).min(-1)
    most = jnp.minimum(view.most_gpus, jnp.maximum(2 * view.widest, least))
    may = (gpus >= view.least_gpus[:, None]) & (gpus <= most[:, None]) & (goodput > 0) & view.active[:, None]
    may = may & (gpus <= view.total[kind])
    same = (gpus == view.gpus[:, None]) & ((kind == view.kind[:, None]) | ~held[:, None])
    may = may & (same | ~(held & (view.waiting_s > 0))[:, None])  # nobody is stopped in a restart
    fewest = jnp.broadcast_to(jnp.where(may, goodput, jnp.inf).min(-1, keepdims=True), goodput.shape)
    fewest = jax.lax.optimization_barrier(fewest)  # else XLA multiplies by an inverse, and equal values would differ
    speedup = jnp.where((view.widest > 0)[:, None], goodput / fewest, 1.0)  # before it has run a type is like another
    speedup = jnp.where(same, speedup, speedup * _kept(view)[:, None])
    cost = jnp.where(may, 1.0 / jnp.sqrt(jnp.maximum(speedup, _TINY)), jnp.inf)  # rightly rounded, unlike a power
    nothing = jnp.where(held & (view.waiting_s > 0), jnp.inf, WITHOUT_GPUS)
    return -jnp.where(gpus == 0, jnp.where(view.active, nothing, 0.0)[:, None], cost)


def _kept(view: View) -> Float64[Array, "J"]:
    """Share of a speedup that counts where GPUs change."""
    lost_s = jnp.maximum(view.restarts - 1, 0) * view.restart_s
    kept = jnp.maximum(view.age_s - lost_s, 0.0) / (view.age_s + view.restart_s)
    return jnp.where((view.gpus > 0) & (view.age_s >= view.restart_s), kept, 1.0)


def sia(view: View) -> Allocation:
    """The least sum of `speedup ** -0.5` over jobs, exactly."""
    gpus, kind = choices_of(view)
    made = jax.ShapeDtypeStruct(view.gpus.shape, jnp.int32)

    def on_host(value: np.ndarray, total: np.ndarray) -> np.ndarray:
        return solve(value, gpus, kind, total)

    return _allocation(view, call_on_host(on_host, made, values(view), view.total))


def sia_greedy(view: View) -> Allocation:
    """Likewise, by gain."""
    return greedy(view, values(view))


def greedy(view: View, value: Float64[Array, "J C"]) -> Allocation:
    """A large sum of the values of choices, by gain."""
    gpus, kind = choices_of(view)
    value = value.at[:, 0].max(-1e3)  # to have nothing, where a job may not, is worth little: sums have to stay finite
    return _allocation(view, by_gain(value, jnp.asarray(gpus, jnp.int32), view.total, list(kind)))


def _allocation(view: View, chosen: Int[Array, "J"]) -> Allocation:
    gpus, kind = (jnp.asarray(column, jnp.int32) for column in choices_of(view))
    return Allocation(gpus=gpus[chosen], kind=jnp.where(gpus[chosen] > 0, kind[chosen], view.kind))


def solve(value: np.ndarray, gpus: np.ndarray, kind: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The choice of every job for which the sum of values is largest; int32[J].

    At any prices of GPUs no sum is above that of the jobs' best choices less what these cost, plus all GPUs sold. Only
    choices that together stay near that bound are looked at: with good prices they are few, and no others are better.

    Args:
        value: float64[J, C], -inf where a job may not have a choice. Every job may have one at least.
        gpus: of every choice. int[C].
        kind: GPU type of every choice. int[C].
        total: GPUs of every type. int[T].
    """
    held = np.where(kind == np.arange(len(total))[:, None], gpus, 0)
    prices = _prices(value, held, total)
    score = value - prices @ held
    best = score.argmax(1)
    asked = AtPrices(score.max(1, keepdims=True) - score, best, held, total - held[:, best].sum(1), prices)
    near = _NEAR
    while True:
        found = within(asked, near)
        if found is not None:
            return found
        near *= 2.0


def _prices(value: np.ndarray, held: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Prices of a GPU of each type at which the bound is within `_CLOSE` of the least.

    The bound is convex in the prices. The ellipsoid method (Shor; Yudin and Nemirovski, 1976-77), with cuts through the
    best value so far, needs no step sizes, and says how far it is from the least.
    """
    size, rows = len(total), np.arange(len(value))
    nothing = np.where(np.isfinite(value[:, :1]), value[:, :1], np.inf)  # who restarts has one choice, at any price
    highest = max(float(((value[:, 1:] - nothing) / np.maximum(held.sum(0)[1:], 1)).max(initial=0.0)), _TINY)
    at, spread = np.full(size, highest / 2), np.eye(size) * (size * highest**2 / 4)
    least, prices = np.inf, at
    for _ in range(_STEPS * size**2):
        negative = at < 0
        if negative.any():
            slope, over = -negative.astype(float), float(-at[negative].sum())
        else:
            score = value - at @ held
            chosen = score.argmax(1)
            slope = total - held[:, chosen].sum(1).astype(float)
            bound = float(score[rows, chosen].sum() + at @ total)
            least, prices = (bound, at) if bound < least else (least, prices)
            over = bound - least
        along = spread @ slope
        length = float(np.sqrt(max(slope @ along, 0.0)))
        if length <= over or (length <= _CLOSE and not negative.any()):
            break
        at, spread = _cut(at, spread, along / length, over / length)
    return prices


def _cut(at: np.ndarray, spread: np.ndarray, along: np.ndarray, depth: float) -> tuple[np.ndarray, np.ndarray]:
    """The smallest ellipsoid around a part of one, beyond a plane `depth` of the way from its centre to its edge."""
    size, step = len(at), (1 + len(at) * depth) / (len(at) + 1)
    if size == 1:
        return at - step * along, spread * ((1 - depth) / 2) ** 2
    wide = size**2 * (1 - depth**2) / (size**2 - 1)
    return at - step * along, wide * (spread - 2 * step / (1 + depth) * np.outer(along, along))


class AtPrices(NamedTuple):
    """Choices at prices. J jobs, C choices, T GPU types."""

    short: np.ndarray  # of the best one, by choice: float64[J, C]
    best: np.ndarray  # int[J]
    held: np.ndarray  # GPUs of every choice: int[T, C]
    left: np.ndarray  # GPUs that the best ones leave, below 0 where they take too many: int[T]
    prices: np.ndarray  # float64[T]


def within(asked: AtPrices, near: float) -> np.ndarray | None:
    """The best choices at most `near` below the bound, by what jobs are short of and what GPUs that are left cost.

    None if there are none. Job after job, of all ways to the same GPUs left the one that is least short is kept.
    """
    may = asked.short <= near
    jobs = np.flatnonzero(may.sum(1) > 1)
    choices = [np.flatnonzero(may[job]) for job in jobs]
    more = [asked.held[:, [asked.best[job]]].T - asked.held[:, some].T for job, some in zip(jobs, choices, strict=True)]
    size = len(asked.left)
    frees = np.array([of_job.max(0) for of_job in more]).reshape(-1, size)[::-1].cumsum(0)[::-1]
    takes = np.array([of_job.min(0) for of_job in more]).reshape(-1, size)[::-1].cumsum(0)[::-1]
    frees, takes = (np.append(sums, np.zeros((1, size), int), axis=0) for sums in (frees, takes))
    most = np.where(asked.prices > 0, near / np.maximum(asked.prices, _TINY), np.inf)  # more left cost too much
    left, short, trail = asked.left[None], np.zeros(1), []
    for step, (job, some, gives) in enumerate(zip(jobs, choices, more, strict=True), start=1):
        left = (left[:, None] + gives).reshape(-1, size)
        short = (short[:, None] + asked.short[job, some]).reshape(-1)
        kept = np.flatnonzero((short <= near) & ((left + frees[step] >= 0) & (left + takes[step] <= most)).all(1))
        order = np.lexsort((short[kept], *left[kept].T))
        kept = kept[order]
        kept = kept[np.append(True, (left[kept][1:] != left[kept][:-1]).any(1))[: len(kept)]]
        left, short = left[kept], short[kept]
        trail.append(kept)
    cost = np.where((left >= 0).all(1), short + left @ asked.prices, np.inf)
    if not (cost <= near).any():
        return None
    chosen, row = asked.best.astype(np.int32), int(cost.argmin())
    for job, some, kept in zip(jobs[::-1], choices[::-1], trail[::-1], strict=True):
        row, choice = divmod(int(kept[row]), len(some))
        chosen[job] = some[choice]
    return chosen
