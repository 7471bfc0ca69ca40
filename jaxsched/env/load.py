"""How busy everything is at a moment, and how slow that makes the running jobs (docs/semantics.md, section 5)."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax import Array

from jaxsched.dynamics.contention import own_use, totals
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.lanes import only_where
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import Footprint, StepTime, slowdown_of, step_time
from jaxsched.env.state import EnvConfig, EnvParams, State


@chex.dataclass(frozen=True)
class Load:
    """How busy everything is, and what that does to the running jobs."""

    own: Array  # float32[P, M], as in `State`
    total: Array  # float32[P, M], likewise
    step: StepTime  # leaves float32[P, R], 0 in free slots
    slowdown: Array  # float32[P, R], 1 in free slots
    stretch: Array | None  # float32[P, R], on shared GPUs, as in `Running`


def sharers_of(params: EnvParams, state: State) -> Sharers:
    """The jobs in the running slots, as those on the same GPU see them; leaves [P, R]. Needs shared GPUs."""
    gpu, per_group = state.running.gpu, state.shared.shape[-1]
    kinds = params.cluster.group_gpu_type.reshape(gpu.shape[0], -1)
    group = jnp.maximum(gpu, 0) // per_group
    model = state.jobs.model[jnp.maximum(state.running.job, 0)]
    return Sharers(gpu=gpu, model=model, gpu_type=jnp.take_along_axis(kinds, group, -1))


def load_of(
    config: EnvConfig, params: EnvParams, print_of: Callable[[Array], Footprint], active: Array, changed: Array,
    old: Load, sharers: Sharers | None = None,
) -> Load:  # fmt: skip
    """The load when the jobs `active: bool[P, R]` run.

    Args:
        print_of: from a partition to the footprints in its running slots, slots last.
        changed: bool[P], partitions in which other jobs are active than when the load was `old`. Those in which nothing
            has changed, links that other partitions use included, keep what they had.
        sharers: the jobs in the running slots, leaves [P, R], where GPUs may be shared.
    """
    layout = layout_of(params.cluster)
    model, weights = config.interference, params.interference
    own = only_where(changed, lambda p: own_use(print_of(p).use, active[p]), lambda p: old.own[p])
    total = totals(params.cluster, own)

    stretch = None
    if sharers is not None:
        gpus = layout.nk * config.shared_gpus

        def stretch_in(p: Array) -> Array:
            jobs = jax.tree.map(lambda leaf: leaf[p], sharers)
            return stretch_of(model, weights, params.sharing, gpus, jobs, active[p])

        stretch = only_where(changed, stretch_in, lambda p: old.stretch[p])

    def speed_in(p: Array) -> tuple[StepTime, Array]:
        rows, on_gpu = print_of(p), None if stretch is None else stretch[p]
        step = step_time(model, weights, layout, rows, total[p, :, None])
        step = jax.tree.map(lambda leaf: jnp.where(active[p], leaf, 0.0), step)
        return step, jnp.where(active[p], slowdown_of(step, rows.ideal, on_gpu), 1.0)

    def as_before(p: Array) -> tuple[StepTime, Array]:
        return jax.tree.map(lambda leaf: leaf[p], (old.step, old.slowdown))

    step, slowdown = only_where(changed | (total != old.total).any(-1), speed_in, as_before)
    return Load(own=own, total=total, step=step, slowdown=slowdown, stretch=stretch)
