"""Placements on offer to the jobs of a window, and what each would do, by the true dynamics.

Both `greedy-wait` and the learned policies choose among these, so neither knows more than the other.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32, Num

from jaxsched.dynamics.batching import of_parts, on_cpu
from jaxsched.dynamics.footprint import Best, Footprint, JobSpec, best_hardware, footprint
from jaxsched.dynamics.gpu_sharing import Sharers, stretch_with
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.occupants import Occupants
from jaxsched.dynamics.resources import layout_of
from jaxsched.dynamics.speed import StepTime, slowdown, slowdown_of, step_time_of, step_time_with
from jaxsched.env.extensions import sharing
from jaxsched.env.state import EnvParams
from jaxsched.policies.candidates import list_candidates, list_single_gpus
from jaxsched.policies.filling import place_ps, quantise
from jaxsched.policies.rules import View, by_racks, fastest, per_server
from jaxsched.policies.window import SharedGpus, Window, make_view
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import MILLI, WHOLE

BLOCK = 8  # candidates whose effects are computed at once
SHARE = 3 / 8  # of all blocks side by side that are computed at once: hardly any job has two
Chosen = tuple[Int32[Array, "some NK"], Int32[Array, "some"]]  # workers of candidates, GPUs as in `Action`


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
    valid &= window.some[w]  # side by side more places may be worked out than there are jobs
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
    """`predict` of the valid candidates, `BLOCK` at a time: most often all at once. The others have `others`.

    Where much runs side by side (`dynamics.batching`) only blocks of any job in which something is valid are computed.
    """
    count = valid.shape[0]
    if count <= BLOCK:
        return predict(options)
    place, starts = jnp.cumsum(valid) - 1, jnp.arange(0, count, BLOCK)

    def block(start: Array, _: Array) -> tuple[Array, ...]:
        index = jnp.argmax(valid & (place == start + jnp.arange(BLOCK)[:, None]), -1)
        return predict(jax.tree.map(lambda leaf: leaf[index], options))

    void = tuple(jnp.full((len(starts), BLOCK), value) for value in others)
    found = of_parts(starts, starts <= place[-1], block, void, share=SHARE)
    return tuple(jnp.where(valid, new.reshape(-1)[jnp.maximum(place, 0)], old) for new, old in zip(found, others))


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
