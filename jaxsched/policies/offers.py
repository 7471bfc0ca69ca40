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
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import StepTime, slowdown, slowdown_of, step_time, step_time_with
from jaxsched.env.extensions import sharing
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.state import EnvParams, State, job_spec
from jaxsched.policies.candidates import candidates, single_gpus
from jaxsched.policies.filling import place_ps, quantise
from jaxsched.policies.rules import View, fastest, per_server
from jaxsched.pytree import Pytree, static
from jaxsched.workload.jobs import MILLI, WHOLE

BLOCK = 8  # candidates whose effects are computed at once
Chosen = tuple[Int32[Array, "some NK"], Int32[Array, "some"] | None]  # workers of candidates, GPUs as in `Action`


class Scene(Pytree):
    """What there is to choose from; `W` jobs of the window."""

    free: Int32[Array, "P NK"]
    total: Float32[Array, "P M"]
    footprint: Footprint  # of the running jobs, leaves [P, ..., R]
    left_s: Float32[Array, "P R"]  # ideal seconds that the running jobs have left by their estimates, 0 in free slots
    wait_s: Float32[Array, "P"]  # seconds until something can change, at least one interval; inf if nothing runs
    job: JobSpec  # leaves [P, W]
    duration_s: Float32[Array, "P W"]  # as estimated
    some: Bool[Array, "P W"]  # there is such a job, and its scheduler has not waited yet
    crowd: "Crowd | None" = None  # who shares GPUs; None if nobody can
    exit_s: Float32[Array, "P N"] | None = None  # seconds until the last job of a server ends; None: not looked at
    gpu_speeds: int = static(default=1)  # as in `State`
    every_gpu: bool = static(default=False)  # a fraction is offered single GPUs, not what its group's rule says


class Crowd(Pytree):
    """The shared GPUs of every partition; in `offers` of one partition, without the axis P."""

    shared: Int16[Array, "P NK S"]  # thousandths in use
    running: Sharers  # leaves [P, R], `gpu` -1 in free slots, too
    stretch: Float32[Array, "P R"]  # of the running jobs


class Offers(Pytree):
    """Candidate placements of one job."""

    view: View  # the partition
    gpus_per_worker: Num[Array, ""]  # int32, or float32 with shared GPUs
    workers: Int32[Array, "C NK"]
    valid: Bool[Array, "C"]
    own: Float32[Array, "C"]  # slowdown of the job
    added_s: Float32[Array, "C"]  # seconds it would cost the jobs that run
    effective: Float32[Array, "C"]  # `own` plus `added_s` in units of the job's duration
    loss: Float32[Array, "C"]  # the same, `own` over what the placement's slowest GPUs give at best: at least 1
    later: Float32[Array, "C"]  # by how much later its servers would be wholly free, in those units; 0: not looked at
    stake: Float32[Array, "C"]  # seconds lost by a `loss` above 1, own and others', over the wait for a change
    gpu: Int32[Array, "C"] | None = None  # as in `Action`


class Here(Pytree):
    """A scene with the present step times; of `by_partition` a leading axis P, of one partition none."""

    scene: Scene
    now: StepTime | None  # leaves [P, R], see `present`; None: each looks for itself


def by_partition(params: EnvParams, scene: Scene) -> Here:
    """The scene, of which `dynamics.batching.of_parts` looks up partitions."""
    return Here(scene=scene, now=present(params, scene) if on_cpu() else None)


def scene_of(
    state: State,
    params: EnvParams,
    slots: Int32[Array, "P W"],
    found: Bool[Array, "P W"],
    lifetimes: bool = False,
    every_gpu: bool = False,
) -> Scene:
    """The scene for the queued jobs in `slots` where `found`; `lifetimes`: with `exit_s`."""
    running = state.running
    partitions = jnp.arange(state.queue.shape[0])
    row = jnp.maximum(state.queue[partitions[:, None], slots], 0)
    active = running.job >= 0
    left = estimated_left_s(state)
    end = jnp.where(active, left * running.slowdown, jnp.inf)
    return Scene(
        free=state.free.reshape(len(partitions), -1),
        total=state.total,
        footprint=running.footprint,
        left_s=left,
        wait_s=jnp.maximum(end.min(-1), params.interval_s),
        job=job_spec(state.jobs, row),
        duration_s=state.jobs.estimate_s[row],
        some=found & ~state.waited[:, None],
        crowd=crowd_of(state, params),
        exit_s=_exits(state, end) if lifetimes else None,
        gpu_speeds=state.gpu_speeds,
        every_gpu=every_gpu and state.shares,
    )


def _exits(state: State, end_s: Float32[Array, "P R"]) -> Float32[Array, "P N"]:
    """Seconds until the last job of each server ends, 0 without jobs; `end_s`: until each job ends."""
    there = (state.running.job >= 0)[..., None] & (state.running.workers > 0).any(-1)
    return jnp.where(there, end_s[..., None], 0.0).max(1)


def crowd_of(state: State, params: EnvParams) -> Crowd | None:
    """The shared GPUs of a state, if it has some."""
    shared, stretch = state.shared, state.running.stretch
    if not state.shares:
        return None
    running, (p, n, k, _) = sharing.sharers_of(params, state), shared.shape
    running = running.replace(gpu=jnp.where(state.running.job >= 0, running.gpu, -1))
    if state.pairs.there:  # how slow they are is seen; what changes follows from what is believed
        believed = lambda jobs: stretch_of(params.interference, n * k * shared.shape[-1], jobs, jobs.gpu >= 0)
        stretch = jax.vmap(believed)(running)
    return Crowd(shared=shared.reshape(p, n * k, -1), running=running, stretch=stretch)


def present(params: EnvParams, scene: Scene) -> StepTime:
    """Step times of the running jobs where a scheduler has a job to place, else 0; leaves [P, R]."""

    def of_partition(p: Array) -> StepTime:
        rows = jax.tree.map(lambda leaf: leaf[p], scene.footprint)
        return step_time(params.interference, rows, scene.total[p, :, None])

    def nothing(p: Array) -> StepTime:
        return StepTime(compute=jnp.zeros_like(scene.left_s[p]), comm=jnp.zeros_like(scene.left_s[p]))

    return only_where(scene.some.any(-1), of_partition, nothing)


def offers(
    params: EnvParams,
    here: "Here",
    p: Int32[Array, ""],
    w: Int32[Array, ""],
    beside: tuple[Int32[Array, "NK"], Int32[Array, ""] | None] | None = None,
) -> Offers:
    """What there is for the job at place `w` of the window of partition `p`.

    Args:
        here: the partition, of `by_partition`.
        beside: workers of one more candidate, the last, and its GPU as in `Action`.
    """
    scene = here.scene
    now = here.now or step_time(params.interference, scene.footprint, scene.total[:, None])
    cluster, layout = one_partition(params.cluster, p), layout_of(params.cluster)
    rows, crowd = scene.footprint, scene.crowd
    room = jnp.zeros_like(scene.free) if crowd is None else sharing.room_of(scene.free, crowd.shared)
    view = View(cluster=cluster, free=scene.free, total=scene.total, profiles=params.profiles, room=room)
    job = jax.tree.map(lambda leaf: leaf[w], scene.job)
    if scene.gpu_speeds > 1:
        view = fastest(view, job)
    duration = scene.duration_s[w]
    workers, valid = candidates(view, job)
    gpu = None
    if scene.every_gpu:
        assert crowd is not None and job.milli is not None
        lone, index, fits = single_gpus(view, crowd.shared, job.milli)
        gpu = jnp.concatenate([jnp.full(valid.shape, -1), index])
        workers = jnp.concatenate([workers, lone])
        valid = jnp.concatenate([valid & (job.milli >= WHOLE), fits & (job.milli < WHOLE)])
    if beside is not None:
        if beside[1] is not None:
            gpu = jnp.append(jnp.full(valid.shape, -1) if gpu is None else gpu, beside[1])
        workers, valid = jnp.concatenate([workers, beside[0][None]]), jnp.append(valid, True)
    best = best_hardware(params.cluster)

    def appraise(chosen: tuple[Array, Array | None]) -> tuple[Array, ...]:
        workers, gpu = chosen
        prints = candidate_prints(view, best, job, workers)
        stretches = None if crowd is None else _stretches(params, view, crowd, job, workers, gpu)
        left = scene.left_s
        effects = what_if(params.interference, rows, left, now, view.total, prints, stretches)
        return (*effects, prints.least) if scene.gpu_speeds > 1 else effects

    own, added, *least = in_blocks(appraise, (workers, gpu), valid, (1.0, 0.0, 1.0)[: 2 + (scene.gpu_speeds > 1)])
    effective = loss = own + added / jnp.maximum(duration, 1e-9)
    if least:
        loss = own / least[0] + added / jnp.maximum(duration, 1e-9)
    later = jnp.zeros_like(own)
    if scene.exit_s is not None:
        used = jax.vmap(lambda w: per_server(layout, w))(workers) > 0
        later = jnp.where(used, jnp.maximum((own * duration)[:, None] - scene.exit_s, 0.0), 0.0).sum(-1)
    stake = (loss - 1.0) * duration / scene.wait_s
    return Offers(
        view=view,
        gpus_per_worker=job.gpus_per_worker if job.milli is None else job.gpus_per_worker * (job.milli * MILLI),
        workers=workers,
        valid=valid,
        own=own,
        added_s=added,
        effective=effective,
        loss=loss,
        later=later / jnp.maximum(duration, 1e-9),
        stake=stake,
        gpu=gpu,
    )


def in_blocks(
    appraise: Callable[[Chosen], tuple[Float32[Array, "some"], ...]],
    options: Chosen,
    valid: Bool[Array, "C"],
    others: tuple[float, ...],
) -> tuple[Float32[Array, "C"], ...]:
    """`appraise` of the valid candidates, `BLOCK` at a time: most often all at once. What is said of others is void.

    Where much runs side by side (`dynamics.batching`) all candidates are appraised. Else the others have `others`.
    """
    count = valid.shape[0]
    if count <= BLOCK or not on_cpu():
        return appraise(options)
    place = jnp.cumsum(valid) - 1

    def block(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        start, *found = carry
        chosen = valid & (place == start + jnp.arange(BLOCK)[:, None])
        index = jnp.argmax(chosen, -1)
        new = appraise(jax.tree.map(lambda leaf: leaf[index], options))
        return start + BLOCK, *(put(old, chosen, values) for old, values in zip(found, new, strict=True))

    def put(old: Array, chosen: Array, new: Array) -> Array:
        return jnp.where(chosen.any(0), jnp.where(chosen, new[:, None], 0.0).sum(0), old)

    start = (jnp.int32(0), *(jnp.full(count, value) for value in others))
    return lax.while_loop(lambda carry: carry[0] <= place[-1], block, start)[1:]


def choice_score(on: Offers) -> Int32[Array, "C"]:
    """`effective` and `later` together as `quantise` has them; candidates that are not valid come last.

    greedy-wait takes the lowest, of equals the first.
    """
    return jnp.where(on.valid, quantise(on.effective + on.later), jnp.iinfo(jnp.int32).max)


class Stretches(Pytree):
    """How much longer jobs compute for their co-runners on a GPU, before and with each of C placements."""

    now: Float32[Array, "R"]
    own: Float32[Array, "C"]
    after: Float32[Array, "C R"]


def _stretches(
    params: EnvParams,
    view: View,
    crowd: Crowd,
    job: JobSpec,
    workers: Int32[Array, "C NK"],
    chosen: Int32[Array, "C"] | None,
) -> Stretches:
    """What placing `job` as `workers`, on GPUs that are `chosen` if given, would do on the GPUs that it would share."""
    assert job.milli is not None
    each = (None, None, 0, None, None if chosen is None else 0)
    gpu, _ = jax.vmap(sharing.gpu_for, in_axes=each)(view.free, crowd.shared, workers, job.milli, chosen)
    kinds = view.cluster.group_gpu_type.reshape(-1)[sharing.group_of(workers)]
    placed = Sharers(gpu=gpu, model=jnp.broadcast_to(job.model, gpu.shape), gpu_type=kinds)
    gpus = crowd.shared.shape[0] * crowd.shared.shape[1]
    own, after = stretch_with(params.interference, gpus, crowd.running, crowd.stretch, placed)
    return Stretches(now=crowd.stretch, own=own, after=after)


def candidate_prints(view: View, best: Best, job: JobSpec, workers: Int32[Array, "C NK"]) -> Footprint:
    """Footprints, last axis C, of placing `job` as `workers` on one partition."""
    shape = view.cluster.group_gpus.shape
    ps = jax.vmap(place_ps, in_axes=(0, None))(workers, job.ps)

    def one(w: Array, u: Array) -> Footprint:
        return footprint(view.cluster, best, view.profiles, job, w.reshape(shape), u.reshape(shape))

    return jax.vmap(one, out_axes=-1)(workers, ps)


def what_if(
    interference: Interference,
    rows: Footprint,
    remaining_s: Float32[Array, "R"],
    now: StepTime,
    total: Float32[Array, "M"],
    prints: Footprint,
    on_gpu: Stretches | None = None,
) -> tuple[Float32[Array, "C"], Float32[Array, "C"]]:
    """What each candidate would do: its own slowdown, and the seconds it adds to the running jobs.

    Args:
        rows: the partition's running jobs, slots last. remaining_s: ideal seconds they have left, 0 in free slots.
        now: their present step times, leaves [R].
        prints: last axis C. on_gpu: the same for shared GPUs, None where there are none.
    """
    before, alone, beside = (on_gpu.now, on_gpu.own, on_gpu.after) if on_gpu else (1.0, 1.0, 1.0)
    own = slowdown(interference, prints, total[:, None] + prints.use, alone, at_once=not on_cpu())
    after = slowdown_of(step_time_with(interference, rows, total, now, prints.use), rows, beside)
    return own, (remaining_s * jnp.maximum(after - slowdown_of(now, rows, before), 0.0)).sum(-1)
