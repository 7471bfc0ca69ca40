"""What schedulers choose from: the first jobs of each queue, all that runs, and what is free.

`policies.offers` lists placements for the jobs of a window, and says what each would do.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int16, Int32

from jaxsched.cluster.hardware import one_partition
from jaxsched.dynamics.batching import on_cpu, only_where
from jaxsched.dynamics.footprint import JobSpec
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of
from jaxsched.dynamics.occupants import Occupants, at_places
from jaxsched.dynamics.speed import StepTime, step_time_of
from jaxsched.env.extensions import sharing
from jaxsched.env.extensions.gpu_sets import asks_of, spare
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.state import EnvParams, State, job_spec
from jaxsched.policies.rules import View, for_job
from jaxsched.pytree import Pytree, static


class Window(Pytree):
    """What there is to choose from: `W` jobs of each queue, and all that runs; of one partition without the axis P."""

    free: Int32[Array, "P NK"]
    total: Float32[Array, "P M"]
    occupants: Occupants  # the running jobs
    left_s: Float32[Array, "P R"]  # ideal seconds that the running jobs have left by their estimates, 0 in free slots
    wait_s: Float32[Array, "P"]  # seconds until something can change, at least one interval; inf if nothing runs
    job: JobSpec  # leaves [P, W]
    duration_s: Float32[Array, "P W"]  # as estimated
    some: Bool[Array, "P W"]  # there is such a job, and its scheduler has not waited yet
    exit_s: Float32[Array, "P N"]  # seconds until the last job of a server ends; 0 without `lifetimes`
    sharing: "SharedGpus | None"  # who shares GPUs; None if nobody can
    usable: Bool[Array, "P A NK"]  # as in `State`
    spare: Int32[Array, "P N r"]  # as in `View`
    now: StepTime | None = None  # of the running jobs, see `with_step_times`; None: each looks for itself
    leaving: "Leaving | None" = None  # with `ahead`
    gpu_speeds: int = static(default=1)  # as in `State`
    tiered: bool = static(default=False)  # GPUs too slow for the job are left out of `free` already
    lifetimes: bool = static(default=False)  # servers that are longer in use cost more
    every_gpu: bool = static(default=False)  # a fraction is offered single GPUs, not what its group's rule says
    racks: bool = static(default=False)  # only what lies in the racks that are chosen for a gang


class SharedGpus(Pytree):
    """The shared GPUs of every partition, and who runs there; of one partition without the axis P."""

    shared: Int16[Array, "P NK S"]  # thousandths in use
    running: Sharers  # leaves [P, R], `gpu` -1 in free slots, too
    stretch: Float32[Array, "P R"]  # of the running jobs


class Leaving(Pytree):
    """When the running jobs end, and what is free then; how long jobs wait; of one partition without the axis P."""

    end_s: Float32[Array, "P R"]  # by their estimates; infinite in free slots
    whole: Bool[Array, "P R"]  # jobs with whole GPUs: their ends are looked at
    gpus: Int32[Array, "P R"]  # of each worker
    asks: Int32[Array, "P R r"]  # what each worker reserves; r = 0 where none does
    others: Float32[Array, "P M"]  # utilisation by the jobs of other partitions
    waited_s: Float32[Array, "P W"]  # seconds since the jobs of the window arrived, over how many jobs wait there
    goes: Bool[Array, "P W"]  # jobs that go to faster GPUs in another partition, whatever they could have here


def make_window(
    state: State,
    params: EnvParams,
    slots: Int32[Array, "P W"],
    found: Bool[Array, "P W"],
    *,
    lifetimes: bool = False,
    every_gpu: bool = False,
    ahead: bool = False,
    goes: Bool[Array, "P W"] | bool = False,
    racks: bool = False,
) -> Window:
    """What there is to choose from for queued jobs.

    Args:
        state: As the policy sees it.
        params: Likewise.
        slots: of the queue.
        found: There is a job in that slot; the others do not count.
        lifetimes: As in `Window`.
        every_gpu: Likewise.
        ahead: For who looks ahead: also when the running jobs end.
        goes: As in `Leaving`.
        racks: As in `Window`.
    """
    running = state.running
    partitions = jnp.arange(state.queue.shape[0])
    row = jnp.maximum(state.queue[partitions[:, None], slots], 0)
    active = running.job >= 0
    left = estimated_left_s(state)
    end = jnp.where(active, left * running.slowdown, jnp.inf)
    return Window(
        free=state.free.reshape(len(partitions), -1),
        total=state.total,
        occupants=running.occupants,
        left_s=left,
        wait_s=jnp.maximum(end.min(-1), params.interval_s),
        job=job_spec(state.jobs, row),
        duration_s=state.jobs.estimate_s[row],
        some=found & ~state.waited[:, None],
        exit_s=_find_exits(state, end) if lifetimes else jnp.zeros(state.free.shape[:2]),
        sharing=_find_shared_gpus(state, params) if state.shares else None,
        usable=state.usable_by_partition,
        spare=spare(state, params.cluster) if state.asks else jnp.zeros((*state.free.shape[:2], 0), jnp.int32),
        leaving=_find_leaving(state, params, end, row, goes) if ahead else None,
        gpu_speeds=state.gpu_speeds,
        lifetimes=lifetimes,
        every_gpu=every_gpu and state.shares,
        racks=racks,
    )


def _find_exits(state: State, end_s: Float32[Array, "P R"]) -> Float32[Array, "P N"]:
    """Seconds until the last job of each server ends, 0 without jobs; `end_s`: until each job ends."""
    end_s = jnp.where(state.running.job >= 0, end_s, 0.0)

    def of_partition(occupants: Occupants, end_s: Array) -> Array:
        return jnp.where(occupants.workers > 0, at_places(occupants, end_s), 0.0).max((-1, -2))

    return jax.vmap(of_partition)(state.running.occupants, end_s)


def _find_leaving(
    state: State,
    params: EnvParams,
    end_s: Float32[Array, "P R"],
    row: Int32[Array, "P W"],
    goes: Bool[Array, "P W"] | bool,
) -> Leaving:
    """What looking ahead needs; `end_s` as in `_find_exits`, `row`: the jobs of the window."""
    waited_s = (state.clock - state.jobs.arrival[row]) * params.interval_s
    running = state.running
    (p, slots), gpus = running.job.shape, running.whole_gpus
    asks = asks_of(state, jnp.maximum(running.job, 0)) if state.asks else jnp.zeros((p, slots, 0), jnp.int32)
    return Leaving(
        end_s=end_s,
        whole=(running.job >= 0) & (gpus > 0),
        gpus=gpus,
        asks=asks,
        others=jnp.maximum(state.total - state.own, 0.0),
        waited_s=waited_s / jnp.maximum((state.queue >= 0).sum(-1, keepdims=True), 1),
        goes=jnp.broadcast_to(goes, row.shape),
    )


def _find_shared_gpus(state: State, params: EnvParams) -> SharedGpus:
    shared, stretch = state.shared, state.running.stretch
    running, (p, n, k, _) = sharing.sharers_of(params, state), shared.shape
    running = running.replace(gpu=jnp.where(state.running.job >= 0, running.gpu, -1))
    if state.pairs.there:  # how slow they are is seen; what changes follows from what is believed
        believed = lambda jobs: stretch_of(params.interference, n * k * shared.shape[-1], jobs, jobs.gpu >= 0)
        stretch = jax.vmap(believed)(running)
    return SharedGpus(shared=shared.reshape(p, n * k, -1), running=running, stretch=stretch)


def with_step_times(params: EnvParams, window: Window) -> Window:
    """The window, of which `dynamics.batching.of_parts` looks up partitions, with what all its jobs need.

    On a CPU these are the step times of the running jobs where a scheduler has a job to place, else 0.
    """
    if not on_cpu():
        return window

    def of_partition(p: Array) -> StepTime:
        jobs = jax.tree.map(lambda leaf: leaf[p], window.occupants)
        return step_time_of(params.interference, jobs, window.total[p])

    def nothing(p: Array) -> StepTime:
        return StepTime(compute=jnp.zeros_like(window.left_s[p]), comm=jnp.zeros_like(window.left_s[p]))

    return window.replace(now=only_where(window.some.any(-1), of_partition, nothing))


def make_view(params: EnvParams, window: Window, p: Int32[Array, ""], job: JobSpec) -> View:
    """The partition as a job sees it that may use GPUs of any speed."""
    room = sharing.room_of(window.free, window.sharing.shared) if window.sharing else jnp.zeros_like(window.free)
    view = View(
        cluster=one_partition(params.cluster, p),
        free=window.free,
        total=window.total,
        profiles=params.profiles,
        room=room,
        usable=window.usable,
        spare=window.spare,
    )
    return for_job(view, job)
