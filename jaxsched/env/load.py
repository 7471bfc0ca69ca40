"""How busy everything is at a moment, and how slow that makes the running jobs (docs/semantics.md, section 5)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics import batching
from jaxsched.dynamics.batching import only_where
from jaxsched.dynamics.contention import own_use, totals
from jaxsched.dynamics.footprint import Footprint
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import slowdown, slowdown_of_some, users_of
from jaxsched.env.state import EnvParams, State
from jaxsched.pytree import Pytree

FEW = 64  # running slots of a partition whose slowdowns are all computed again on a CPU, too, when something changes


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
    footprints_of: Callable[[Int32[Array, ""]], Footprint],
    active: Bool[Array, "P R"],
    changed: Bool[Array, "P R"],
    old: Load,
    sharers: Sharers | None = None,
    shared_gpus: int = 0,
) -> Load:
    """The load when the jobs `active` run.

    Args:
        footprints_of: from a partition to the footprints in its running slots, slots last.
        changed: jobs that came or went since the load was `old`. Partitions in which nothing has changed,
            links that other partitions use included, keep what they had; so do, on a CPU, jobs of a partition with more
            than `FEW` slots, if nothing that they use has changed.
        sharers: the jobs in the running slots, leaves [P, R], where `shared_gpus` of every group may be shared.
    """
    interference = params.interference
    here = changed.any(-1)
    own = only_where(here, lambda p: own_use(footprints_of(p).use, active[p]), lambda p: old.own[p])
    total = totals(params.cluster, own)

    stretch, old_stretch = None, old.stretch
    if sharers is not None:
        assert old_stretch is not None
        gpus = layout_of(params.cluster).nk * shared_gpus

        def stretch_in(p: Array) -> Array:
            jobs = jax.tree.map(lambda leaf: leaf[p], sharers)
            return stretch_of(interference, gpus, jobs, active[p])

        stretch = only_where(here, stretch_in, lambda p: old_stretch[p])

    def slowdown_in(p: Array) -> Array:
        rows, on_gpu = footprints_of(p), None if stretch is None else stretch[p]
        if active.shape[-1] <= FEW or not batching.on_cpu():
            rate = slowdown(interference, rows, total[p, :, None], on_gpu)
        else:
            stale = changed[p] | users_of(rows.use, total[p] != old.total[p])
            if stretch is not None and old_stretch is not None:
                stale |= stretch[p] != old_stretch[p]
            before = old.slowdown[p]
            rate = slowdown_of_some(interference, rows, total[p], stale & active[p], before, on_gpu)
        return jnp.where(active[p], rate, 1.0)

    rate = only_where(here | (total != old.total).any(-1), slowdown_in, lambda p: old.slowdown[p])
    return Load(own=own, total=total, slowdown=rate, stretch=stretch)
