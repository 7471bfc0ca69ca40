"""Sia (Jayaram Subramanya et al., SOSP 2023): a choice of GPUs and GPU type for every job, best in sum.

`sia` solves the integer program exactly, on the host. `sia_greedy` finds a choice for the same sum by prices and jumps,
in the program. The rule is that of docs/semantics.md, section 13.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Int

from jaxsched.adaptive.choosing import by_gain
from jaxsched.adaptive.tables import widths
from jaxsched.adaptive.view import Allocation, View
from jaxsched.pytree import call_on_host

FAIRNESS = -0.5  # the exponent of speedups
WITHOUT_GPUS = 1.1  # what a job without GPUs costs; with the fewest it costs 1
_TINY = 1e-9
_FEW = 2000  # choices of all jobs, up to which the whole program is solved at once
_NEAR = 4e-3  # of the best, at prices: the choices that are tried first
_STEPS = 30  # of the ellipsoid, times the square of types: each shrinks it by a constant share
_INFEASIBLE = 2  # a status of SciPy's


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
    fewest = jnp.where(may, goodput, jnp.inf).min(-1, keepdims=True)
    speedup = jnp.where((view.widest > 0)[:, None], goodput / fewest, 1.0)  # before it has run a type is like another
    speedup = jnp.where(same, speedup, speedup * _kept(view)[:, None])
    cost = jnp.where(may, jnp.maximum(speedup, _TINY) ** FAIRNESS, jnp.inf)
    nothing = jnp.where(held & (view.waiting_s > 0), jnp.inf, WITHOUT_GPUS)
    return -jnp.where(gpus == 0, jnp.where(view.active, nothing, 0.0)[:, None], cost)


def _kept(view: View) -> Float64[Array, "J"]:
    """Share of a speedup that counts where GPUs change."""
    lost_s = jnp.maximum(view.restarts - 1, 0) * view.restart_s
    kept = jnp.maximum(view.age_s - lost_s, 0.0) / (view.age_s + view.restart_s)
    return jnp.where((view.gpus > 0) & (view.age_s >= view.restart_s), kept, 1.0)


def sia(view: View) -> Allocation:
    """The least sum of `speedup ** FAIRNESS` over jobs, exactly (SciPy's HiGHS)."""
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
    return _allocation(view, by_gain(_finite(value), jnp.asarray(gpus, jnp.int32), view.total, list(kind)))


def _finite(value: Float64[Array, "J C"]) -> Float64[Array, "J C"]:
    """To have nothing, where a job may not, is worth little: sums have to stay finite."""
    return value.at[:, 0].max(-1e3)


def _allocation(view: View, chosen: Int[Array, "J"]) -> Allocation:
    gpus, kind = (jnp.asarray(column, jnp.int32) for column in choices_of(view))
    return Allocation(gpus=gpus[chosen], kind=jnp.where(gpus[chosen] > 0, kind[chosen], view.kind))


def solve(value: np.ndarray, gpus: np.ndarray, kind: np.ndarray, total: np.ndarray) -> np.ndarray:
    """The choice of every job for which the sum of values is largest; int32[J].

    Of many choices only those near the best at some prices of GPUs are looked at. The prices bound every sum, and so
    tell that no other choice is part of a better one.

    Args:
        value: float64[J, C], -inf where a job may not have a choice. Every job may have one at least.
        gpus: of every choice. int[C].
        kind: GPU type of every choice. int[C].
        total: GPUs of every type. int[T].
    """
    held = np.where(kind == np.arange(len(total))[:, None], gpus, 0)
    if np.isfinite(value).sum() < _FEW:
        found = _program(value, held, total)
        assert found is not None, "no choice fits"
        return found
    rows = np.arange(len(value))
    bound, prices = _least_bound(value, held, total)
    score = value - prices @ held
    short, near = score.max(1, keepdims=True) - score, _NEAR
    while True:
        found = _program(np.where(short <= near, value, -np.inf), held, total)
        gap = np.inf if found is None else bound - value[rows, found].sum()
        if found is not None and gap <= near:
            return found
        near = min(2.0 * near, gap) if found is None else gap + _TINY


def _least_bound(value: np.ndarray, held: np.ndarray, total: np.ndarray) -> tuple[float, np.ndarray]:
    """Prices of a GPU of each type, and what no sum can be above: each job at its best, and all GPUs sold.

    The bound is convex in the prices. The ellipsoid method (Shor; Yudin and Nemirovski, 1976-77) needs no step sizes.
    """
    size, rows = len(total), np.arange(len(value))
    nothing = np.where(
        np.isfinite(value[:, :1]), value[:, :1], np.inf
    )  # who restarts has one choice, whatever the price
    highest = max(float(((value[:, 1:] - nothing) / np.maximum(held.sum(0)[1:], 1)).max(initial=0.0)), _TINY)
    at, spread = np.full(size, highest / 2), np.eye(size) * (size * highest**2 / 4)
    least, best = np.inf, np.zeros(size)
    for _ in range(_STEPS * size**2):
        slope = -(at < 0).astype(float)
        if not slope.any():
            score = value - at @ held
            chosen = score.argmax(1)
            slope = total - held[:, chosen].sum(1)
            bound = float(score[rows, chosen].sum() + at @ total)
            least, best = (bound, at) if bound < least else (least, best)
        along = spread @ slope
        length = float(np.sqrt(max(slope @ along, 0.0)))
        if length < _TINY:
            break
        at = at - along / length / (size + 1)
        if size == 1:
            spread = spread / 4
        else:
            spread = size**2 / (size**2 - 1) * (spread - 2 / (size + 1) * np.outer(along, along) / length**2)
    return least, best


def _program(value: np.ndarray, held: np.ndarray, total: np.ndarray) -> np.ndarray | None:
    """The best choices by SciPy's HiGHS; None if none fit."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array

    may = np.isfinite(value)
    chosen = np.zeros(len(value), np.int32)
    job, choice = np.nonzero(may & may[:, 1:].any(1, keepdims=True))
    if not len(job):
        return chosen
    jobs, of_job = np.unique(job, return_inverse=True)
    columns = np.arange(len(job))
    one_each = csc_array((np.ones(len(job)), (of_job, columns)), shape=(len(jobs), len(job)))
    limits = [
        LinearConstraint(one_each, 1, 1),  # pyright: ignore[reportArgumentType]
        LinearConstraint(csc_array(held[:, choice]), ub=total),  # pyright: ignore[reportArgumentType]
    ]
    found = milp(
        -value[job, choice],
        integrality=np.ones(len(job)),
        bounds=Bounds(0, 1),
        constraints=limits,
        options={"mip_rel_gap": 0},
    )
    if found.status == _INFEASIBLE:
        return None
    assert found.x is not None, found.message
    taken = found.x > 0.5
    chosen[job[taken]] = choice[taken]
    return chosen
