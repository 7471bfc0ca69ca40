"""How busy everything is at a moment, and how slow that makes the running jobs (docs/semantics.md, section 5)."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics import batching
from jaxsched.dynamics.batching import of_parts, only_where
from jaxsched.dynamics.contention import own_use, totals
from jaxsched.dynamics.footprint import Footprint
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import slowdown, slowdown_of_some, users_of
from jaxsched.env.state import EnvParams
from jaxsched.pytree import Pytree

FEW = 64  # running slots of a partition whose slowdowns are all computed again on a CPU, too, when something changes
CHANGED = 3 / 8  # of all partitions side by side that are looked at together; in a turn a third has changed
MANY = 8192  # with fewer partitions side by side all are computed


class Load(Pytree):
    """How busy everything is, and what that does to the running jobs."""

    own: Float32[Array, "P M"]  # as in `State`
    total: Float32[Array, "P M"]  # likewise
    slowdown: Float32[Array, "P R"]  # 1 in free slots
    stretch: Float32[Array, "P Rs"]  # on shared GPUs, as in `Running`


def load_of(
    params: EnvParams,
    footprints: Footprint | Callable[[Int32[Array, ""]], Footprint],
    active: Bool[Array, "P R"],
    changed: Bool[Array, "P R"],
    old: Load,
    sharers: Sharers,
    shared_gpus: int,
) -> Load:
    """The load when the jobs `active` run.

    Args:
        footprints: in the running slots, slots last: leaves [P, ...], or from a partition to its own.
        changed: jobs that came or went since the load was `old`. Partitions in which nothing has changed,
            links that other partitions use included, keep what they had; so do, on a CPU, jobs of a partition with more
            than `FEW` slots, if nothing that they use has changed.
        sharers: see `sharing.sharers_of`. shared_gpus: of every group that may be shared.
    """
    interference = params.interference
    here = changed.any(-1)
    side_by_side = functools.partial(of_parts, share=CHANGED, least=MANY)
    if isinstance(footprints, Footprint):
        own = side_by_side((footprints.use, active), here, lambda part, _: own_use(*part), old.own)
    else:
        of_partition = footprints
        own = only_where(here, lambda p: own_use(of_partition(p).use, active[p]), lambda p: old.own[p])
    total = totals(params.cluster, own)

    stretch = old.stretch
    if shared_gpus:
        gpus = layout_of(params.cluster).nk * shared_gpus

        def stretch_in(p: Array) -> Array:
            jobs = jax.tree.map(lambda leaf: leaf[p], sharers)
            return stretch_of(interference, gpus, jobs, active[p])

        stretch = only_where(here, stretch_in, lambda p: old.stretch[p])

    def slowdown_in(part: tuple[Footprint, Array, Array, Array], _) -> Array:
        rows, total, active, on_gpu = part
        return jnp.where(active, slowdown(interference, rows, total[:, None], on_gpu if shared_gpus else 1.0), 1.0)

    stale = here | (total != old.total).any(-1)
    if isinstance(footprints, Footprint):
        rate = side_by_side((footprints, total, active, stretch), stale, slowdown_in, old.slowdown)
        return Load(own=own, total=total, slowdown=rate, stretch=stretch)

    def slowdown_at(p: Array) -> Array:
        rows, on_gpu = footprints(p), stretch[p]
        if active.shape[-1] <= FEW or not batching.on_cpu():
            return slowdown_in((rows, total[p], active[p], on_gpu), p)
        some = changed[p] | users_of(rows.use, total[p] != old.total[p])
        if shared_gpus:
            some |= on_gpu != old.stretch[p]
        stale_jobs, on_gpu = some & active[p], on_gpu if shared_gpus else 1.0
        rate = slowdown_of_some(interference, rows, total[p], stale_jobs, old.slowdown[p], on_gpu)
        return jnp.where(active[p], rate, 1.0)

    rate = only_where(stale, slowdown_at, lambda p: old.slowdown[p])
    return Load(own=own, total=total, slowdown=rate, stretch=stretch)
