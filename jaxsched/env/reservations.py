"""GPUs that a partition keeps for its first blocked gang (docs/semantics.md, section 7, "Reservation")."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from jaxsched.dynamics.batching import only_where
from jaxsched.env.extensions.gpu_sets import share_no_gpu, usable_by
from jaxsched.env.extensions.sharing import is_fraction
from jaxsched.env.gpu_choice import suits
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.queues import Discipline, area_s, feasible, first, movable
from jaxsched.env.state import EnvParams, Overtaken, State
from jaxsched.pytree import Pytree
from jaxsched.semantics import SAME_RATIO
from jaxsched.workload.jobs import look_up


def openings(
    queue: Discipline, params: EnvParams, state: State, keys: Float32[Array, "P Q"]
) -> tuple[Bool[Array, "P Q"], Bool[Array, "P Q P"]]:
    """Where queued jobs may start now: in their own partition, or only in others; with `queue.faster` in these, too.

    With `queue.reserve`, not where a partition keeps its free GPUs for its first blocked gang in ascending order of
    `keys`. Where GPUs differ, not where the job should rather wait for faster ones.
    """
    return weigh_openings(queue, params, state, keys, weighs=False)[:2]


def weigh_openings(
    queue: Discipline, params: EnvParams, state: State, keys: Float32[Array, "P Q"], *, weighs: bool = True
) -> tuple[Bool[Array, "P Q"], Bool[Array, "P Q P"], "Passed | None"]:
    """`openings` for who keeps GPUs where that is worth it, if it `weighs` that; also what a start costs the gang."""
    can_start, passed = feasible(state, params.cluster, consolidate=queue.consolidate, racks=queue.racks), None
    if not queue.reserve and state.gpu_speeds == 1:
        return can_start, movable(state, params, can_start, consolidate=queue.consolidate, racks=queue.racks), None
    p = jnp.arange(state.queue.shape[0])
    wanted = jnp.ones((*state.queue.shape, len(p)), bool)
    if queue.reserve:
        passes, passed = passing(params, state, keys, can_start, weighs=weighs)
        wanted &= passes
    if state.gpu_speeds > 1:
        wanted &= suits(params, state, keys)
    can_start &= wanted[p, :, p]
    stays = jnp.zeros_like(can_start) if queue.faster else can_start
    return (can_start, movable(state, params, stays, consolidate=queue.consolidate, racks=queue.racks) & wanted, passed)


class Passed(Pytree):
    """The gang of each partition, a row, and what it costs it if a queued job starts there."""

    row: Int32[Array, "P"]
    cost_s: Float32[Array, "P Q"]

    def by(self, slot: Int32[Array, "P"]) -> Overtaken:
        """What the jobs in these slots of the queues do."""
        return Overtaken(row=self.row, cost_s=jnp.take_along_axis(self.cost_s, slot[:, None], 1)[:, 0])


def passing(
    params: EnvParams, state: State, keys: Float32[Array, "P Q"], can_start: Bool[Array, "P Q"], *, weighs: bool
) -> tuple[Bool[Array, "P Q P"], Passed | None]:
    """Whether the queued job may pass the first gang that is blocked in this partition.

    It may if it comes before the gang by `keys`, if its area is no larger, if it would be done before the gang can
    start, if it leaves enough for the gang, or if the two may use no GPU both; where no gang is blocked (by
    `can_start`) all may. With `weighs` it also may if that costs the gang less than being held back costs the job; then
    also what it would cost.
    """
    p, row = jnp.arange(state.queue.shape[0]), jnp.maximum(state.queue, 0)
    gpus, area, estimate = gang_gpus(state, row), area_s(state), state.jobs.estimate_s[row]
    slot, some = first(keys, state.queue, (state.queue >= 0) & ~can_start & (gpus > 1))
    gang = row[p, slot]

    def compared(values: Array) -> tuple[Array, Array]:  # the job's, and that of each partition's gang
        return values[..., None], values[p, slot]

    wait_s, spare, freeing = _awaited(state, some, gang)
    (key, gang_key), (turn, gang_turn), (own, gang_area) = compared(keys), compared(row), compared(area)
    earlier = (key < gang_key) | ((key == gang_key) & (turn < gang_turn))
    brief = estimate[..., None] < wait_s * SAME_RATIO
    harmless = earlier | brief | (gpus[..., None] <= spare)
    if state.binds:
        harmless |= share_no_gpu(state, row, gang)
    passes = harmless | (own <= gang_area)
    if not weighs:
        return passes, None
    both_s = _await_more(freeing, gpus)
    held_s = jnp.minimum(both_s, wait_s + state.jobs.estimate_s[gang])
    lost_s = jnp.minimum(both_s, estimate[..., None]) - wait_s
    passes |= state.owed_s[p, slot] + lost_s < held_s * SAME_RATIO
    cost_s = jnp.where(harmless, 0.0, jnp.maximum(lost_s, 0.0))[p, :, p]
    return passes, Passed(row=gang, cost_s=cost_s)


Freeing = tuple[Float32[Array, "P R"], Int32[Array, "P R"]]  # ends in turn, GPUs beyond the gang's that are free then


def _awaited(
    state: State, some: Bool[Array, "P"], gang: Int32[Array, "P"]
) -> tuple[Float32[Array, "P"], Int32[Array, "P"], Freeing]:
    """Seconds until each partition's `gang`, a row, fits by the estimates, and how many more GPUs are free then.

    GPUs that it may not use do not count. Infinite if that never comes, and where not `some`. Also what becomes free.
    """
    free, row = state.free.sum((1, 2)), jnp.maximum(state.running.job, 0)
    held_by = jnp.where(is_fraction(state, row), 0, gang_gpus(state, row))  # 0: others may share its GPU
    left, need = estimated_left_s(state), gang_gpus(state, gang)
    if state.binds:
        usable = usable_by(state, gang)
        workers = jnp.einsum("prnk,pnk->pr", state.running.workers.astype(jnp.int32), usable.astype(jnp.int32))
        free = jnp.where(usable, state.free, 0).sum((1, 2))
        held_by = jnp.where(held_by > 0, workers * state.running.gpus_per_worker, 0)

    def of_partition(p: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        end_s, held = _ends(state, left[p], held_by[p], p)
        in_turn, freed = lax.sort((end_s, held), num_keys=1)
        more = free[p] + jnp.cumsum(freed) - need[p]
        wait_s = jnp.where((more >= 0).any(), in_turn[jnp.argmax(more >= 0)], jnp.inf)
        spare = free[p] + jnp.where(end_s < wait_s * SAME_RATIO, held, 0).sum() - need[p]
        return wait_s, spare, (in_turn, more)

    none = jnp.full(left.shape[-1], jnp.inf), jnp.zeros(left.shape[-1], jnp.int32)
    return only_where(some, of_partition, lambda p: (jnp.float32(jnp.inf), jnp.int32(0), none))


def _await_more(freeing: Freeing, gpus: Int32[Array, "P Q"]) -> Float32[Array, "P Q P"]:
    """Seconds until so many GPUs are free in each partition beside those of its gang; infinite if that never comes."""

    def in_partition(in_turn: Array, more: Array) -> Array:
        at = jnp.searchsorted(more, gpus)
        return jnp.where(at < len(more), in_turn[jnp.minimum(at, len(more) - 1)], jnp.inf)

    return jax.vmap(in_partition, out_axes=-1)(*freeing)


def _ends(
    state: State, left_s: Float32[Array, "R"], held: Int32[Array, "R"], p: Array
) -> tuple[Float32[Array, "R"], Int32[Array, "R"]]:
    """Seconds until the jobs of a partition end by the estimates, and the GPUs that are free then; infinite if none.

    Args: `held`, by each running slot; stale in free ones.
    """
    held = jnp.where(state.running.job[p] >= 0, held, 0)
    return jnp.where(held > 0, left_s * state.running.slowdown[p], jnp.inf), held


def gang_gpus(state: State, row: Int32[Array, "*jobs"]) -> Int32[Array, "*jobs"]:
    """GPUs that the jobs take, 1 for a fraction."""
    return look_up(state.jobs.workers, row) * look_up(state.jobs.gpus_per_worker, row)
