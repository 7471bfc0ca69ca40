"""What a scheduler sees: its partition, its queue's window, the pooled state of every scheduler, and its menu.

Nothing here depends on the cluster's size except through array axes, and every feature is a ratio or a logarithm, so
that weights trained on a small cluster read a large one.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int8, Int32

from jaxsched.dynamics.occupants import at_places, count_last
from jaxsched.dynamics.resources import layout_of
from jaxsched.env.extensions.sharing import gpus_of
from jaxsched.env.knowledge import estimated_left_s
from jaxsched.env.queues import Discipline, area_s, first, order_keys
from jaxsched.env.reservations import weigh_openings
from jaxsched.env.state import EnvParams, State
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import look_up


class Observation(Pytree):
    """Of every scheduler; `shown` jobs are those of the window and one more, `F*` are feature counts."""

    group: Float32[Array, "P N K Fg"]
    group_mask: Bool[Array, "P N K"]  # False = padding
    server: Float32[Array, "P N Fs"]
    server_rack: Int32[Array, "P N"]
    rack: Float32[Array, "P T Fr"]
    scheduler: Float32[Array, "P Fp"]  # pooled view that schedulers exchange
    job: Float32[Array, "P shown Fj"]  # the window and, last, the first job that may not start here
    job_slot: Int32[Array, "P shown"]  # queue slot
    job_mask: Bool[Array, "P shown"]  # there is such a job (those of the window may start now, the last one may not)
    forward_mask: Bool[Array, "P P"]  # that last job may be forwarded to this scheduler


class Menu(Pytree):
    """Placements on offer, K for every scheduler, those of the window's first job first."""

    rank: Int32[Array, "P K"]  # the job's place in the window
    order: Int32[Array, "P K"]  # place among the job's candidates in greedy-wait's order, 0 for its choice
    workers: Int8[Array, "P K NK"]  # per group
    features: Float32[Array, "P K Fc"]  # what the placement would do, see `policies.menu`
    log_stake: Float32[Array, "P K"]  # log of the seconds lost over those until the next completion, within +-4
    brief: Bool[Array, "P K"]  # the job would be done before the next completion
    mask: Bool[Array, "P K"]


class Choice(Pytree):
    """One decision per scheduler."""

    act: Bool[Array, "P"]  # do something rather than wait
    option: Int32[Array, "P"]  # index into placements (K) followed by forwards (P)


def log_ratio(value: Float32[Array, "*#shape"], unit: float | Float32[Array, "*#shape"]) -> Float32[Array, "*#shape"]:
    """`log(1 + value / unit)`: a feature scale for durations and counts."""
    return jnp.log1p(jnp.maximum(value, 0.0) / unit)


def window_slots(
    queue: Discipline,
    keys: Float32[Array, "P Q"],
    state: State,
    can_start: Bool[Array, "P Q"],
    preferred: Bool[Array, "P Q"] | None = None,
) -> tuple[Int32[Array, "P shown"], Bool[Array, "P shown"]]:
    """The first jobs that may start, as many as the window has, and the first that may not: slots, and whether any.

    Args: `can_start`, see `env.reservations.openings`. Of those that may not start the ones that are `preferred` come
    first. Without backfilling the window shows the first job of the queue, if it may start, and no other.
    """
    slots, found = [], []
    columns = jnp.arange(state.queue.shape[-1])
    left = can_start
    if not queue.backfill:
        left &= columns == first(keys, state.queue, state.queue >= 0)[0][:, None]
    for _ in range(queue.window):
        slot, any_left = first(keys, state.queue, left)
        slots.append(slot)
        found.append(any_left)
        left &= columns != slot[:, None]
    blocked_jobs = ~can_start & (state.queue >= 0)
    slot, blocked = first(keys, state.queue, blocked_jobs)
    if preferred is not None:
        better, some = first(keys, state.queue, blocked_jobs & preferred)
        slot = jnp.where(some, better, slot)
    return jnp.stack([*slots, slot], -1), jnp.stack([*found, blocked], -1)


def job_features(
    params: EnvParams, state: State, slots: Int32[Array, "P shown"], mask: Bool[Array, "P shown"]
) -> Float32[Array, "P shown Fj"]:
    """Features of the jobs in these queue slots, 0 where there is none."""
    row = jnp.maximum(jnp.take_along_axis(state.queue, slots, -1), 0)
    jobs, profiles = state.jobs, params.profiles
    model = look_up(jobs.model, row)
    gpus = gpus_of(jobs, row)
    age_s = (state.clock - jobs.arrival[row]) * params.interval_s + jobs.lead_s[row]
    compute = profiles.compute_s[model]
    nic = params.cluster.nic_bytes_s.max()
    pcie = params.cluster.pcie_bytes_s.max()
    features = [
        log_ratio(look_up(jobs.workers, row).astype(jnp.float32), 1.0),
        log_ratio(gpus.astype(jnp.float32), 1.0),
        (look_up(jobs.ps, row) > 0).astype(jnp.float32),
        log_ratio(look_up(jobs.ps, row).astype(jnp.float32), 1.0),
        log_ratio(jobs.estimate_s[row], 60.0) / 4,
        log_ratio(jobs.estimate_s[row], params.interval_s) / 4,
        log_ratio(age_s, 60.0) / 4,
        log_ratio(age_s, jnp.maximum(jobs.estimate_s[row], 1.0)),
        log_ratio(profiles.gradient_bytes[model] / nic, compute),
        log_ratio(profiles.gradient_bytes[model] / pcie, compute),
        profiles.cpu_cores[model] * profiles.sens_cpu[model] / 8,
        profiles.cpu_cores[model] / 16,
        log_ratio(profiles.input_bytes[model] / pcie, compute) * profiles.sens_pcie[model],
        state.records.forwards[row].astype(jnp.float32),
    ]
    return jnp.stack(features, -1) * mask[..., None]


def _excess(state: State) -> Float32[Array, "P R"]:
    """By how much each running job's slowdown is above 1; 0 in free slots."""
    return (state.running.job >= 0).astype(jnp.float32) * jnp.maximum(state.running.slowdown - 1.0, 0.0)


def group_features(params: EnvParams, state: State) -> Float32[Array, "P N K Fg"]:
    """Of GPU groups: what is free, hardware, load, and how slow and how long their jobs are."""
    cluster, layout = params.cluster, layout_of(params.cluster)
    gpus = cluster.group_gpus.astype(jnp.float32)
    occupants = state.running.occupants
    sum_of = jax.vmap(lambda jobs, values: jnp.where(jobs.workers > 0, at_places(jobs, values), 0.0).sum(-1))
    left = sum_of(occupants, estimated_left_s(state)) / jnp.maximum(jax.vmap(count_last)(occupants), 1)
    features = [
        state.free / jnp.maximum(gpus, 1.0),
        state.free / 4.0,
        gpus / 8.0,
        cluster.group_speed * (gpus > 0),  # over that of the reference type
        jnp.log1p(state.total[:, layout.cpu].reshape(cluster.shape)),
        jnp.log1p(state.total[:, layout.pcie].reshape(cluster.shape)),
        jnp.log1p(sum_of(occupants, _excess(state))),
        log_ratio(left, 60.0) / 4,
    ]
    return jnp.stack(features, -1)


def server_features(params: EnvParams, state: State) -> Float32[Array, "P N Fs"]:
    """Of servers: what is free, whether all is, load of QPI and NIC."""
    cluster, layout = params.cluster, layout_of(params.cluster)
    features = [
        state.free.sum(-1) / jnp.maximum(cluster.group_gpus.astype(jnp.float32).sum(-1), 1.0),
        (state.free == cluster.group_gpus).all(-1).astype(jnp.float32),
        jnp.log1p(state.total[:, layout.qpi]),
        jnp.log1p(state.total[:, layout.nic]),
    ]
    return jnp.stack(features, -1)


def rack_features(params: EnvParams, state: State) -> Float32[Array, "P T Fr"]:
    """Of racks: load of the busiest link that they send over, and what is free."""
    cluster, layout = params.cluster, layout_of(params.cluster)
    on_path = jax.vmap(lambda links, path: links[path])(state.total[:, layout.link], cluster.path)
    busiest = jnp.where(cluster.path_share > 0, on_path, 0.0).max((2, 3))
    in_rack = (cluster.server_rack[..., None] == jnp.arange(cluster.rack_id.shape[-1])).astype(jnp.float32)
    gpus = jnp.einsum("pn,pnt->pt", cluster.group_gpus.astype(jnp.float32).sum(-1), in_rack)
    free = jnp.einsum("pn,pnt->pt", state.free.sum(-1).astype(jnp.float32), in_rack)
    return jnp.stack([jnp.log1p(busiest), free / jnp.maximum(gpus, 1.0)], -1)


def scheduler_features(params: EnvParams, state: State) -> Float32[Array, "P Fp"]:
    """Of whole partitions, for all schedulers: what is free, the queue, the running jobs, load of NICs and links."""
    cluster, layout = params.cluster, layout_of(params.cluster)
    gpus = cluster.group_gpus.astype(jnp.float32)
    all_gpus = jnp.maximum(gpus.sum((1, 2)), 1.0)
    queued = state.queue >= 0
    count = jnp.maximum((state.running.job >= 0).astype(jnp.float32).sum(-1), 1.0)
    features = [
        state.free.sum((1, 2)) / all_gpus,
        log_ratio(queued.sum(-1).astype(jnp.float32), 1.0) / 4,
        log_ratio((queued * area_s(state)).sum(-1) / all_gpus, 60.0) / 4,
        _excess(state).sum(-1) / count,
        log_ratio(estimated_left_s(state).sum(-1) / count, 60.0) / 4,
        jnp.log1p(state.total[:, layout.nic].sum(-1) / jnp.maximum((gpus > 0).any(-1).sum(-1), 1)),
        jnp.log1p(state.total[:, layout.link].max(-1)),
    ]
    return jnp.stack(features, -1)


def observe(queue: Discipline, params: EnvParams, state: State, *, weighs: bool = False) -> Observation:
    """The observation of every scheduler whose queue has this discipline.

    Who `weighs` what reservations cost (`env.reservations.weigh_openings`) forwards to where most GPUs are free.
    """
    cluster = params.cluster
    keys = order_keys(queue, state, params)
    can_start, open_to, _ = weigh_openings(queue, params, state, keys, weighs=weighs)
    slots, mask = window_slots(queue, keys, state, can_start, open_to.any(-1))
    forward = open_to[jnp.arange(cluster.shape[0]), slots[:, -1]] & mask[:, -1:]
    if weighs:
        forward &= jnp.argmax(jnp.where(forward, state.free.sum((1, 2)), -1), -1)[:, None] == jnp.arange(
            cluster.shape[0]
        )
    return Observation(
        group=group_features(params, state),
        group_mask=cluster.group_gpus > 0,
        server=server_features(params, state),
        server_rack=cluster.server_rack,
        rack=rack_features(params, state),
        scheduler=scheduler_features(params, state),
        job=job_features(params, state, slots, mask),
        job_slot=slots,
        job_mask=mask,
        forward_mask=forward,
    )
