"""How fast placed jobs run: the footprint of a placement, and slowdowns under the totals of a moment."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int, Int32

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.batching import on_cpu
from jaxsched.dynamics.gpu_types import relative_speed
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.resources import CPU, PCIE, Layout, comm_capacity, layout_of
from jaxsched.dynamics.traffic import placement_bytes, ring_bytes
from jaxsched.pytree import Pytree, static
from jaxsched.workload.models import Profiles

UNROLL = 64  # resources per turn of a loop: one fused kernel instead of many small ones
BLOCK = 16  # jobs whose slowdowns are computed together, where not all are


class JobSpec(Pytree):
    """What the dynamics need to know of a job, or of several."""

    workers: Int32[Array, "*jobs"]
    gpus_per_worker: Int32[Array, "*jobs"]
    ps: Int32[Array, "*jobs"]
    model: Int32[Array, "*jobs"]
    milli: Int32[Array, "*jobs"] | None = None  # thousandths of a GPU per worker; None: whole GPUs


class Footprint(Pytree):
    """What a placed job asks of its partition; fixed for as long as it runs.

    Of several jobs the resource axis comes first: reductions over a leading axis vectorise.
    """

    layout: Layout = static()  # of the resource axis

    use: Float32[Array, "M *jobs"]  # utilisation of each resource
    base: Float32[Array, "wires *jobs"]  # uncontended seconds of communication per step on each resource but the CPU
    compute: Float32[Array, "NK *jobs"]  # seconds of computation per step on each group that holds workers, else 0
    ideal: Float32[Array, "*jobs"]  # seconds per step on the ideal placement
    least: Float32[Array, "*jobs"]  # least slowdown on GPUs of these types; 1 on the reference type
    sens_cpu: Float32[Array, "*jobs"]
    sens_pcie: Float32[Array, "*jobs"]
    model: Int32[Array, "*jobs"]


class Best(Pytree):
    """The best hardware of the servers with GPUs of the reference type, against which `duration_s` is defined."""

    group_gpus: Int32[Array, ""]
    server_gpus: Int32[Array, ""]
    groups: Int32[Array, ""]  # groups with GPUs of the server that has most of them
    pcie_bytes_s: Float32[Array, ""]
    qpi_bytes_s: Float32[Array, ""]
    nic_bytes_s: Float32[Array, ""]


@functools.partial(jax.jit, inline=True)
def best_hardware(cluster: Cluster) -> Best:
    """The largest of everything over a whole cluster (with the leading P axis), where GPUs are of its reference type.

    So a server with GPUs of another type changes nobody's ideal.
    """
    gpus = jnp.where(cluster.group_gpu_type == cluster.reference, cluster.group_gpus, 0)
    real = gpus.sum(-1) > 0
    return Best(
        group_gpus=gpus.max(),
        server_gpus=gpus.sum(-1).max(),
        groups=(gpus > 0).sum(-1).max(),
        pcie_bytes_s=jnp.where(gpus > 0, cluster.pcie_bytes_s, 0.0).max(),
        qpi_bytes_s=jnp.where(real, cluster.qpi_bytes_s, 0.0).max(),
        nic_bytes_s=jnp.where(real, cluster.nic_bytes_s, 0.0).max(),
    )


def ideal_step_s(best: Best, profiles: Profiles, job: JobSpec) -> Float32[Array, "*jobs"]:
    """Seconds per step on the ideal placement (docs/semantics.md, section 5)."""
    return profiles.compute_s[job.model] + ideal_comm_s(best, profiles, job)


@functools.partial(jax.jit, inline=True)
def ideal_comm_s(best: Best, profiles: Profiles, job: JobSpec) -> Float32[Array, "*jobs"]:
    """Seconds of it that go into communication."""
    gradient = profiles.gradient_bytes[job.model]
    gpus = job.workers * job.gpus_per_worker
    groups = -(-gpus // best.group_gpus)
    servers = -(-gpus // best.server_gpus)

    ring = ring_bytes(gradient, gpus)
    ring_s = jnp.maximum(ring / best.pcie_bytes_s, jnp.where(groups > servers, ring / best.qpi_bytes_s, 0.0))
    ring_s = jnp.maximum(ring_s, jnp.where(servers > 1, ring / best.nic_bytes_s, 0.0))

    w, s = job.workers.astype(jnp.float32), servers.astype(jnp.float32)
    spread = jnp.minimum(groups, best.groups).astype(jnp.float32)
    pcie = w * gradient / groups / best.pcie_bytes_s
    qpi = gradient * w / (s * s) * (1.0 - 1.0 / spread) / best.qpi_bytes_s
    nic = 2.0 * gradient * w / s * (1.0 - 1.0 / s) / best.nic_bytes_s
    ps_s = jnp.maximum(jnp.maximum(pcie, qpi), nic)
    return jnp.where(job.ps > 0, ps_s, ring_s)


def footprint(
    cluster: Cluster,
    best: Best,
    profiles: Profiles,
    job: JobSpec,
    workers: Int[Array, "N K"],
    ps: Int[Array, "N K"],
) -> Footprint:
    """The footprint of one job on one partition (no leading P axis), by its tasks per GPU group."""
    gpus = (workers * job.gpus_per_worker).astype(jnp.float32)
    cores = gpus * profiles.cpu_cores[job.model] + ps * profiles.ps_cores[job.model]
    own_cpu = (cores / cluster.group_cores).reshape(-1)
    busy, compute_s = workers > 0, profiles.compute_s[job.model]
    speed = relative_speed(profiles, job.model, cluster.group_gpu_type, cluster.group_speed, cluster.reference)
    compute = jnp.where(busy, compute_s / speed, 0.0).reshape(-1)

    sent = placement_bytes(cluster, workers, ps, job.gpus_per_worker, profiles.gradient_bytes[job.model])
    capacity = comm_capacity(cluster)
    base = sent / capacity
    sens_cpu = profiles.sens_cpu[job.model]
    solo = (compute * (1.0 + sens_cpu * (jnp.maximum(own_cpu, 1.0) - 1.0))).max() + base.max()
    solo = jnp.maximum(solo, 1e-9)

    comm_s, slowest = ideal_comm_s(best, profiles, job), compute.max()
    ideal = compute_s + comm_s
    least = jnp.where(slowest == compute_s, 1.0, (slowest + comm_s) / jnp.maximum(ideal, 1e-9))

    layout = layout_of(cluster)
    loaded = jnp.zeros_like(capacity).at[: layout.nk].set((gpus * profiles.input_bytes[job.model]).reshape(-1))
    return Footprint(
        layout=layout,
        use=jnp.concatenate([own_cpu, (sent + loaded) / capacity / solo]),
        base=base,
        compute=compute,
        ideal=ideal,
        least=least,
        sens_cpu=sens_cpu,
        sens_pcie=profiles.sens_pcie[job.model],
        model=job.model,
    )


class StepTime(Pytree):
    """Seconds per step under contention, but for that on shared GPUs."""

    compute: Float32[Array, "*jobs"]
    comm: Float32[Array, "*jobs"]


def slowdown_of(
    time: StepTime, rows: Footprint, stretch: Float32[Array, "*#jobs"] | None = None
) -> Float32[Array, "*#jobs"]:
    """Step time over ideal step time of `rows`, at least their least. It may be below 1 on fast GPUs.

    On a shared GPU computing takes `stretch` as long.
    """
    compute = time.compute if stretch is None else time.compute * stretch
    return jnp.maximum((compute + time.comm) / jnp.maximum(rows.ideal, 1e-9), rows.least)


def slowdown(
    interference: Interference,
    rows: Footprint,
    total: Float32[Array, "M *#jobs"],
    stretch: Float32[Array, "*#jobs"] | None = None,
    *,
    at_once: bool = False,
) -> Float32[Array, "*#jobs"]:
    """Step time over ideal step time; arguments as of `step_time` and `slowdown_of`."""
    return slowdown_of(step_time(interference, rows, total, at_once=at_once), rows, stretch)


def slowdown_of_some(
    interference: Interference,
    rows: Footprint,
    total: Float32[Array, "M"],
    stale: Bool[Array, "R"],
    before: Float32[Array, "R"],
    stretch: Float32[Array, "R"] | None = None,
) -> Float32[Array, "R"]:
    """`slowdown` of the jobs that are `stale` under `total`, and `before` of the others."""
    slots = stale.shape[0]
    index, count = jnp.nonzero(stale, size=slots + BLOCK, fill_value=slots)[0], stale.sum()

    def block(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        start, after = carry
        chosen = lax.dynamic_slice(index, (start,), (BLOCK,))
        some, on_gpu = jax.tree.map(lambda leaf: leaf[..., chosen], (rows, stretch))
        new = slowdown(interference, some, total[:, None], on_gpu)
        return start + BLOCK, after.at[chosen].set(new, mode="drop")

    return lax.while_loop(lambda carry: carry[0] < count, block, (jnp.int32(0), before))[1]


def users_of(use: Float32[Array, "M R"], resources: Bool[Array, "M"]) -> Bool[Array, "R"]:
    """Which jobs use any of `resources`, by their `use`; reads only those rows."""
    index, count = jnp.nonzero(resources, size=resources.shape[0], fill_value=0)[0], resources.sum()

    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        k, found = carry
        return k + 1, found | (use[index[k]] > 0)

    return lax.while_loop(lambda carry: carry[0] < count, body, (jnp.int32(0), jnp.zeros(use.shape[1], bool)))[1]


def step_time(
    interference: Interference, rows: Footprint, total: Float32[Array, "M *#jobs"], *, at_once: bool = False
) -> StepTime:
    """Step times of jobs `rows` under the summed utilisation `total`, of which the rows' own use is part.

    The result has the broadcast shape of the rows' jobs and `total`'s. `at_once`: all resources in one reduction, else
    one after the other, which XLA makes into one kernel if the jobs are few.
    """
    layout, shape = rows.layout, jnp.broadcast_shapes(rows.use.shape[1:], total.shape[1:])

    def on_group(group: tuple[Array, ...]) -> Array:
        cpu, pcie, compute, all_cpu, all_pcie = group
        return compute * _factor(interference, rows, cpu, pcie, all_cpu, all_pcie)

    cpu, pcie = layout.cpu, layout.pcie
    groups = (rows.use[cpu], rows.use[pcie], rows.compute, total[cpu], total[pcie])
    compute = _longest(on_group, jnp.zeros(shape), groups, at_once)

    comm = jnp.zeros(shape)
    for channel, part in layout.wires:

        def on_resource(resource: tuple[Array, ...], channel: int = channel) -> Array:
            use, base, all_use = resource
            return base * interference(channel, rows.model, use, jnp.maximum(all_use - use, 0.0))

        base = rows.base[part.start - layout.nk : part.stop - layout.nk]
        comm = _longest(on_resource, comm, (rows.use[part], base, total[part]), at_once)
    return StepTime(compute=compute, comm=comm)


def _longest(seconds: Callable[..., Array], least: Array, resources: tuple[Array, ...], at_once: bool) -> Array:
    """The longest of `seconds` of each of `resources` (leading axis), and at least `least`; see `step_time`."""
    if at_once:
        return jnp.maximum(least, seconds(resources).max(0, initial=0.0))

    def turn(longest: Array, resource: tuple[Array, ...]) -> tuple[Array, None]:
        return jnp.maximum(longest, seconds(resource)), None

    return lax.scan(turn, least, resources, unroll=UNROLL)[0]


def step_time_with(
    interference: Interference,
    rows: Footprint,
    total: Float32[Array, "M"],
    now: StepTime,
    added: Float32[Array, "M C"],
) -> StepTime:
    """Step times, leaves [C, R], of running jobs `rows`, leaves [..., R], if each of C placements were added.

    A stretch never falls when use is added, so only the resources that a placement touches need a look: the step takes
    the longest of what it takes `now` and of what it would take on those.

    Args: `now`, leaves [R], under `total`; `added`: use of the placements.
    """
    if not on_cpu():
        beside = jax.tree.map(lambda leaf: leaf[..., None, :], rows)
        return step_time(interference, beside, total[:, None, None] + added[..., None], at_once=True)
    layout, count = rows.layout, added.shape[1]
    nk, columns = layout.nk, jnp.arange(count)

    def over_touched(touched: Array, start: StepTime, turn) -> StepTime:
        """`turn(time, index: int32[C], some: bool[C, 1])` for each row `touched: bool[S, C]`, by column."""
        place = jnp.cumsum(touched, axis=0)
        most = place[-1]

        def body(carry: tuple[Array, StepTime]) -> tuple[Array, StepTime]:
            k, time = carry
            index = jnp.argmax(touched & (place == k + 1), axis=0)
            return k + 1, turn(time, index, (k < most)[:, None])

        return lax.while_loop(lambda carry: carry[0] < most.max(), body, (jnp.int32(0), start))[1]

    def after(index: Array) -> Array:
        return (total[index] + added[index, columns])[:, None]

    def stretched(channel: int, index: Array) -> Array:
        use = rows.use[index]
        stretch = interference(channel, rows.model, use, jnp.maximum(after(index) - use, 0.0))
        return rows.base[index - nk] * stretch

    def on_group(time: StepTime, group: Array, some: Array) -> StepTime:
        cpu, pcie = group, nk + group
        factor = _factor(interference, rows, rows.use[cpu], rows.use[pcie], after(cpu), after(pcie))
        compute = jnp.where(some, rows.compute[group] * factor, 0.0)
        comm = jnp.where(some, stretched(PCIE, pcie), 0.0)
        return StepTime(compute=jnp.maximum(time.compute, compute), comm=jnp.maximum(time.comm, comm))

    time = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), now)
    time = over_touched((added[layout.cpu] > 0) | (added[layout.pcie] > 0), time, on_group)
    for channel, part in layout.wires[1:]:

        def on_wire(time: StepTime, index: Array, some: Array, channel=channel, first=part.start) -> StepTime:
            comm = jnp.where(some, stretched(channel, first + index), 0.0)
            return time.replace(comm=jnp.maximum(time.comm, comm))

        time = over_touched(added[part] > 0, time, on_wire)
    return time


def _factor(
    interference: Interference, rows: Footprint, cpu: Array, pcie: Array, all_cpu: Array, all_pcie: Array
) -> Array:
    """How much longer the computation of `rows` takes on a group, given their own and all use of its CPU and PCIe."""

    def stretch(channel: int, own: Array, all_use: Array) -> Array:
        return interference(channel, rows.model, own, jnp.maximum(all_use - own, 0.0))

    factor = 1.0 + rows.sens_cpu * (jnp.maximum(cpu, 1.0) * stretch(CPU, cpu, all_cpu) - 1.0)
    return factor + rows.sens_pcie * (stretch(PCIE, pcie, all_pcie) - 1.0)
