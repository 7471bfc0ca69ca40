"""Placements on offer to the jobs of a window, and what each would do, by the true dynamics.

Both `greedy-wait` and the learned policies choose among these, so neither knows more than the other.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int16, Int32, Num

from jaxsched.cluster.hardware import one_partition
from jaxsched.dynamics.batching import on_cpu, only_where
from jaxsched.dynamics.footprint import Best, Footprint, JobSpec, best_hardware, footprint
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_of, stretch_with
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.occupants import Occupants, at_places
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import StepTime, slowdown, slowdown_of, step_time_of, step_time_with
from jaxsched.env.extensions import sharing
from jaxsched.env.extensions.requests import asks_of, spare
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.state import EnvParams, State, job_spec
from jaxsched.policies.candidates import list_candidates, list_single_gpus
from jaxsched.policies.filling import place_ps, quantise
from jaxsched.policies.rules import View, by_racks, fastest, for_job, per_server
from jaxsched.pytree import Pytree, static
from jaxsched.workload.jobs import MILLI, WHOLE

BLOCK = 8  # candidates whose effects are computed at once
Chosen = tuple[Int32[Array, "some NK"], Int32[Array, "some"]]  # workers of candidates, GPUs as in `Action`


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


class Offers(Pytree):
    """Candidate placements of one job."""

    view: View  # the partition
    gpus_per_worker: Num[Array, ""]  # int32, or float32 with shared GPUs
    workers: Int32[Array, "C NK"]
    valid: Bool[Array, "C"]
    own: Float32[Array, "C"]  # slowdown of the job
    least: Float32[Array, "C"]  # what the placement's slowest GPUs give at best; 1 where all are alike
    added_s: Float32[Array, "C"]  # seconds it would cost the jobs that run
    effective: Float32[Array, "C"]  # `own` plus `added_s` in units of the job's duration
    loss: Float32[Array, "C"]  # the same, `own` over `least`: at least 1
    later: Float32[Array, "C"]  # by how much later its servers would be wholly free, in those units; 0: not looked at
    stake: Float32[Array, "C"]  # seconds lost by a `loss` above 1, own and others', over the wait for a change
    gpu: Int32[Array, "C"]  # as in `Action`


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


def appraise(
    params: EnvParams,
    window: Window,
    p: Int32[Array, ""],
    w: Int32[Array, ""],
    beside: tuple[Int32[Array, "NK"], Int32[Array, ""]] | None = None,
) -> Offers:
    """What there is for a job, and what each placement would do.

    Args:
        params: As the policy sees them.
        window: of one partition, see `with_step_times`.
        p: the partition.
        w: the job's place in the window.
        beside: workers of one more candidate, the last, and its GPU as in `Action`.
    """
    now = window.now or step_time_of(params.interference, window.occupants, window.total)
    jobs, shared = window.occupants, window.sharing
    job = jax.tree.map(lambda leaf: leaf[w], window.job)
    view, duration = make_view(params, window, p, job), window.duration_s[w]
    if window.gpu_speeds > 1 and not window.tiered:
        view = fastest(view, job)
    if window.racks:
        view = by_racks(view, job)
    (workers, gpu), valid = _list_options(window, view, job, beside)
    best = best_hardware(params.cluster)

    def predict(chosen: Chosen) -> tuple[Array, ...]:
        workers, gpu = chosen
        prints = _make_footprints(view, best, job, workers)
        stretches = _find_stretches(params, view, shared, job, workers, gpu) if shared else None
        left = window.left_s
        effects = _predict_effects(params.interference, jobs, left, now, view.total, prints, stretches)
        return (*effects, prints.least) if window.gpu_speeds > 1 else effects

    own, added, *least = _map_in_blocks(predict, (workers, gpu), valid, (1.0, 0.0, 1.0)[: 2 + (window.gpu_speeds > 1)])
    inflicted, least = added / jnp.maximum(duration, 1e-9), least[0] if least else jnp.ones_like(own)
    loss = own / least + inflicted
    stake = (loss - 1.0) * duration / window.wait_s
    return Offers(
        view=view,
        gpus_per_worker=job.gpus_per_worker if job.milli is None else job.gpus_per_worker * (job.milli * MILLI),
        workers=workers,
        valid=valid,
        own=own,
        least=least,
        added_s=added,
        effective=own + inflicted,
        loss=loss,
        later=_find_delays_s(window, view, workers, own * duration) / jnp.maximum(duration, 1e-9),
        stake=stake,
        gpu=gpu,
    )


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


def _list_options(
    window: Window, view: View, job: JobSpec, beside: tuple[Int32[Array, "NK"], Int32[Array, ""]] | None
) -> tuple[Chosen, Bool[Array, "C"]]:
    """The candidates of a job, the one `beside` them last, and which of them are valid."""
    workers, valid = list_candidates(view, job)
    gpu = jnp.full(valid.shape, -1)
    if window.every_gpu:
        assert window.sharing and job.milli is not None
        lone, index, fits = list_single_gpus(view, window.sharing.shared, job.milli)
        gpu = jnp.concatenate([gpu, index])
        workers = jnp.concatenate([workers, lone])
        valid = jnp.concatenate([valid & (job.milli >= WHOLE), fits & (job.milli < WHOLE)])
    if beside:
        gpu = jnp.append(gpu, beside[1])
        workers, valid = jnp.concatenate([workers, beside[0][None]]), jnp.append(valid, True)
    return (workers, gpu), valid


def _find_delays_s(
    window: Window, view: View, workers: Int32[Array, "C NK"], run_s: Float32[Array, "C"]
) -> Float32[Array, "C"]:
    """By how much later servers would be wholly free, with a job that runs so long on them; 0: not looked at."""
    if not window.lifetimes:
        return jnp.zeros_like(run_s)
    layout = layout_of(view.cluster)
    used = jax.vmap(lambda w: per_server(layout, w))(workers) > 0
    return jnp.where(used, jnp.maximum(run_s[:, None] - window.exit_s, 0.0), 0.0).sum(-1)


def _map_in_blocks(
    predict: Callable[[Chosen], tuple[Float32[Array, "some"], ...]],
    options: Chosen,
    valid: Bool[Array, "C"],
    others: tuple[float, ...],
) -> tuple[Float32[Array, "C"], ...]:
    """`predict` of the valid candidates, `BLOCK` at a time: most often all at once. What is said of others is void.

    Where much runs side by side (`dynamics.batching`) all candidates are appraised. Else the others have `others`.
    """
    count = valid.shape[0]
    if count <= BLOCK or not on_cpu():
        return predict(options)
    place = jnp.cumsum(valid) - 1

    def block(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        start, *found = carry
        chosen = valid & (place == start + jnp.arange(BLOCK)[:, None])
        index = jnp.argmax(chosen, -1)
        new = predict(jax.tree.map(lambda leaf: leaf[index], options))
        return start + BLOCK, *(put(old, chosen, values) for old, values in zip(found, new, strict=True))

    def put(old: Array, chosen: Array, new: Array) -> Array:
        return jnp.where(chosen.any(0), jnp.where(chosen, new[:, None], 0.0).sum(0), old)

    start = (jnp.int32(0), *(jnp.full(count, value) for value in others))
    return lax.while_loop(lambda carry: carry[0] <= place[-1], block, start)[1:]


def score(on: Offers) -> Int32[Array, "C"]:
    """`effective` and `later` together as `quantise` has them; candidates that are not valid come last.

    greedy-wait takes the lowest, of equals the first.
    """
    return jnp.where(on.valid, quantise(on.effective + on.later), jnp.iinfo(jnp.int32).max)


def accept(threshold: float, patience: float, on: Offers) -> Bool[Array, "C"]:
    """Which candidates are good enough; all where the partition runs nothing, for then the stake is 0."""
    good = quantise(on.loss) <= quantise(jnp.float32(threshold))
    return good | (quantise(on.stake) <= quantise(jnp.float32(patience)))


class Stretches(Pytree):
    """How much longer jobs compute for their co-runners on a GPU, before and with each of C placements."""

    now: Float32[Array, "R"]
    own: Float32[Array, "C"]
    after: Float32[Array, "C R"]


def _find_stretches(
    params: EnvParams,
    view: View,
    shared: SharedGpus,
    job: JobSpec,
    workers: Int32[Array, "C NK"],
    chosen: Int32[Array, "C"],
) -> Stretches:
    """What placing `job` as `workers` would do on the GPU that it would share, `chosen` as in `Action`."""
    assert job.milli is not None
    gpu, _ = jax.vmap(sharing.gpu_for, in_axes=(None, None, 0, None, 0))(
        view.free, shared.shared, workers, job.milli, chosen
    )
    kinds = view.cluster.group_gpu_type.reshape(-1)[sharing.group_of(workers)]
    placed = Sharers(gpu=gpu, model=jnp.broadcast_to(job.model, gpu.shape), gpu_type=kinds)
    gpus = shared.shared.shape[0] * shared.shared.shape[1]
    own, after = stretch_with(params.interference, gpus, shared.running, shared.stretch, placed)
    return Stretches(now=shared.stretch, own=own, after=after)


def _make_footprints(view: View, best: Best, job: JobSpec, workers: Int32[Array, "C NK"]) -> Footprint:
    """Footprints, last axis C, of placing `job` as `workers` on one partition."""
    shape = view.cluster.group_gpus.shape
    ps = jax.vmap(place_ps, in_axes=(0, None))(workers, job.ps)

    def one(w: Array, u: Array) -> Footprint:
        return footprint(view.cluster, best, view.profiles, job, w.reshape(shape), u.reshape(shape))

    return jax.vmap(one, out_axes=-1)(workers, ps)


def _predict_effects(
    interference: Interference,
    jobs: Occupants,
    remaining_s: Float32[Array, "R"],
    now: StepTime,
    total: Float32[Array, "M"],
    prints: Footprint,
    on_gpu: Stretches | None = None,
) -> tuple[Float32[Array, "C"], Float32[Array, "C"]]:
    """What each candidate would do: its own slowdown, and the seconds it adds to the running jobs.

    Args:
        jobs: those that run in the partition. remaining_s: ideal seconds they have left, 0 in free slots.
        now: their present step times, leaves [R].
        prints: last axis C. on_gpu: the same for shared GPUs, None where there are none.
    """
    before, alone, beside = (on_gpu.now, on_gpu.own, on_gpu.after) if on_gpu else (1.0, 1.0, 1.0)
    own = slowdown(interference, prints, total[:, None] + prints.use, alone, at_once=not on_cpu())
    after = slowdown_of(step_time_with(interference, jobs, total, now, prints.use), jobs, beside)
    return own, (remaining_s * jnp.maximum(after - slowdown_of(now, jobs, before), 0.0)).sum(-1)
