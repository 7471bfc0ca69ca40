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
from jaxsched.env.state import EnvParams, State
from jaxsched.pytree import Pytree

FEW = 64  # running slots of a partition whose slowdowns are all computed again on a CPU, too, when something changes
CHANGED = 3 / 8  # of all partitions side by side that are looked at together; in a turn a third has changed
MANY = 8192  # with fewer partitions side by side all are computed


class Load(Pytree):
    """How busy everything is, and what that does to the running jobs."""

    own: Float32[Array, "P M"]  # as in `State`
    total: Float32[Array, "P M"]  # likewise
    slowdown: Float32[Array, "P R"]  # 1 in free slots
    stretch: Float32[Array, "P R"] | None  # on shared GPUs, as in `Running`


def sharers_of(params: EnvParams, state: State) -> Sharers:
    """The jobs in the running slots, as those on the same GPU see them; leaves [P, R]. Needs shared GPUs."""
    gpu, shared = state.running.gpu, state.shared
    assert gpu is not None and shared is not None
    kinds = params.cluster.group_gpu_type.reshape(gpu.shape[0], -1)
    group = jnp.maximum(gpu, 0) // shared.shape[-1]
    model = state.jobs.model[jnp.maximum(state.running.job, 0)]
    return Sharers(gpu=gpu, model=model, gpu_type=jnp.take_along_axis(kinds, group, -1))


def load_of(
    params: EnvParams,
    footprints: Footprint | Callable[[Int32[Array, ""]], Footprint],
    active: Bool[Array, "P R"],
    changed: Bool[Array, "P R"],
    old: Load,
    sharers: Sharers | None = None,
    shared_gpus: int = 0,
) -> Load:
    """The load when the jobs `active` run.

    Args:
        footprints: in the running slots, slots last: leaves [P, ...], or from a partition to its own.
        changed: jobs that came or went since the load was `old`. Partitions in which nothing has changed,
            links that other partitions use included, keep what they had; so do, on a CPU, jobs of a partition with more
            than `FEW` slots, if nothing that they use has changed.
        sharers: the jobs in the running slots, leaves [P, R], where `shared_gpus` of every group may be shared.
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

    stretch, old_stretch = None, old.stretch
    if sharers is not None:
        assert old_stretch is not None
        gpus = layout_of(params.cluster).nk * shared_gpus

        def stretch_in(p: Array) -> Array:
            jobs = jax.tree.map(lambda leaf: leaf[p], sharers)
            return stretch_of(interference, gpus, jobs, active[p])

        stretch = only_where(here, stretch_in, lambda p: old_stretch[p])

    def slowdown_in(part: tuple[Footprint, Array, Array, Array | None], _) -> Array:
        rows, total, active, on_gpu = part
        return jnp.where(active, slowdown(interference, rows, total[:, None], on_gpu), 1.0)

    stale = here | (total != old.total).any(-1)
    if isinstance(footprints, Footprint):
        rate = side_by_side((footprints, total, active, stretch), stale, slowdown_in, old.slowdown)
        return Load(own=own, total=total, slowdown=rate, stretch=stretch)

    def slowdown_at(p: Array) -> Array:
        rows, on_gpu = footprints(p), None if stretch is None else stretch[p]
        if active.shape[-1] <= FEW or not batching.on_cpu():
            return slowdown_in((rows, total[p], active[p], on_gpu), p)
        some = changed[p] | users_of(rows.use, total[p] != old.total[p])
        if stretch is not None and old_stretch is not None:
            some |= stretch[p] != old_stretch[p]
        rate = slowdown_of_some(interference, rows, total[p], some & active[p], old.slowdown[p], on_gpu)
        return jnp.where(active[p], rate, 1.0)

    rate = only_where(stale, slowdown_at, lambda p: old.slowdown[p])
    return Load(own=own, total=total, slowdown=rate, stretch=stretch)
