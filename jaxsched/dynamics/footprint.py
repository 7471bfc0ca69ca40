"""What a placed job asks of its partition, and what it would take alone (docs/semantics.md, section 5)."""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int, Int32

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.patterns import ideal_bytes, plan_bytes
from jaxsched.dynamics.resources import Layout, comm_capacity, layout_of
from jaxsched.dynamics.traffic import placement_bytes, ring_bytes
from jaxsched.pytree import Pytree, static
from jaxsched.workload.models import Profiles
from jaxsched.workload.patterns import PatternTable


class JobSpec(Pytree):
    """What the dynamics need to know of a job, or of several."""

    workers: Int32[Array, "*jobs"]
    gpus_per_worker: Int32[Array, "*jobs"]
    ps: Int32[Array, "*jobs"]
    model: Int32[Array, "*jobs"]
    milli: Int32[Array, "*jobs"] | None = None  # thousandths of a GPU per worker; None: whole GPUs
    allowed: Int32[Array, "*jobs"] | None = None  # as in `JobTable`; None: any GPU
    asks: Int32[Array, "*jobs 2"] | None = None  # likewise; None: nothing


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

    shape: tuple[int, int] = static()  # most servers of a partition, most groups of a server
    group_gpus: Int32[Array, ""]
    server_gpus: Int32[Array, ""]
    groups: Int32[Array, ""]  # groups with GPUs of the server that has most of them
    pcie_bytes_s: Float32[Array, ""]
    qpi_bytes_s: Float32[Array, ""]
    nic_bytes_s: Float32[Array, ""]
    domains: Int32[Array, "sizes"]  # most servers of an NVLink domain, and a gang's of one; of size 0: there is none


@functools.partial(jax.jit, inline=True)
def relative_speed(
    profiles: Profiles,
    model: Int[Array, "*#shape"],
    gpu_type: Int[Array, "*#shape"],
    speed: Float32[Array, "*#shape"],
    reference: Int32[Array, ""],
) -> Float32[Array, "*#shape"]:
    """Speed of a model on a type over that on the type `reference`; exactly 1 on that.

    As measured, where the profile has both types. Else the part of a step that keeps the host busy takes as long on
    any type, and the rest as much longer as the type is slower.

    Args: `speed` of the type over that of the reference, as in `Cluster.group_speed`.
    """
    host = profiles.sens_cpu[model]
    generic = jnp.where(speed == 1.0, 1.0, 1.0 / (host + (1.0 - host) / speed))
    if profiles.speed is None:
        return generic
    last = profiles.speed.shape[-1] - 1  # a column of zeros: types of one's own, and padding
    there = profiles.speed[model, jnp.where((gpu_type >= 0) & (gpu_type < last), gpu_type, last)]
    here = profiles.speed[model, jnp.minimum(reference, last)]
    return jnp.where((there > 0) & (here > 0), there / jnp.maximum(here, 1e-9), generic)


@functools.partial(jax.jit, inline=True)
def best_hardware(cluster: Cluster) -> Best:
    """The largest of everything over a whole cluster (with the leading P axis), where GPUs are of its reference type.

    So a server with GPUs of another type changes nobody's ideal.
    """
    gpus = jnp.where(cluster.group_gpu_type == cluster.reference, cluster.group_gpus, 0)
    real, domains = gpus.sum(-1) > 0, jnp.zeros(0, jnp.int32)
    if cluster.domain_block.size:
        racks = jnp.arange(cluster.rack_id.shape[-1])
        inside = ((cluster.server_rack[..., None] == racks) & real[..., None]).sum(-2)
        inside = jnp.where(cluster.domain_block > 0, inside, 0)
        blocks = jnp.minimum(inside, cluster.domain_block)
        domains = jnp.maximum(jnp.stack([inside.max(), blocks.max()]), 1)
    return Best(
        domains=domains,
        shape=cluster.shape[1:],
        group_gpus=gpus.max(),
        server_gpus=gpus.sum(-1).max(),
        groups=(gpus > 0).sum(-1).max(),
        pcie_bytes_s=jnp.where(gpus > 0, cluster.pcie_bytes_s, 0.0).max(),
        qpi_bytes_s=jnp.where(real, cluster.qpi_bytes_s, 0.0).max(),
        nic_bytes_s=jnp.where(real, cluster.nic_bytes_s, 0.0).max(),
    )


@functools.partial(jax.jit, inline=True)
def ideal_comm_s(best: Best, profiles: Profiles, job: JobSpec) -> Float32[Array, "*jobs"]:
    """Seconds of a step on the ideal placement (docs/semantics.md, section 5) that go into communication."""
    gradient = profiles.gradient_bytes[job.model]
    gpus = job.workers * job.gpus_per_worker
    groups = -(-gpus // best.group_gpus)
    servers = -(-gpus // best.server_gpus)

    fewest, most, apart, joined = 1, 1, servers > 1, groups > servers  # servers of a domain, with even shares
    if best.domains.size:
        domains = -(-servers // best.domains[0])
        fewest, most = servers // domains, -(-servers // domains)
        apart, joined = domains > 1, joined | (most > 1)

    ring = ring_bytes(gradient, gpus)
    ring_s = jnp.maximum(ring / best.pcie_bytes_s, jnp.where(joined, ring / best.qpi_bytes_s, 0.0))
    ring_s = jnp.maximum(ring_s, jnp.where(apart, ring / fewest / best.nic_bytes_s, 0.0))

    w, s = job.workers.astype(jnp.float32), servers.astype(jnp.float32)
    spread = jnp.minimum(groups, best.groups).astype(jnp.float32)
    pcie = w * gradient / groups / best.pcie_bytes_s
    qpi = gradient * w / (s * s) * jnp.maximum(1.0 - 1.0 / spread, 2.0 * (most - 1)) / best.qpi_bytes_s
    nic = 2.0 * gradient * w / s * (1.0 - fewest / s) / best.nic_bytes_s
    ps_s = jnp.maximum(jnp.maximum(pcie, qpi), nic)
    unplanned = jnp.where(job.ps > 0, ps_s, ring_s)
    if not profiles.plans.gpus.size:
        return unplanned
    plans, model = profiles.plans, job.model
    if not model.ndim:  # of one job only its own plan
        plans, model = jax.tree.map(lambda leaf: leaf[model][None], plans), jnp.zeros_like(model)
    return jnp.where(plans.gpus[model] > 0, _planned_comm_s(best, plans)[model], unplanned)


def _planned_comm_s(best: Best, plans: PatternTable) -> Float32[Array, "models"]:
    """The same of models with a plan, which say how many GPUs a job has."""
    servers, groups = best.shape
    speeds = (best.pcie_bytes_s, best.qpi_bytes_s, best.nic_bytes_s)

    def comm_s(*domain: Int32[Array, ""]) -> Float32[Array, "models"]:
        sizes = (best.server_gpus, best.group_gpus, *domain)
        inside = jax.vmap(lambda plan: ideal_bytes(plan, servers, groups, *sizes))(plans)
        of = jnp.split(inside, [servers * groups, servers * groups + servers], -1)
        return jnp.stack([sent.max(-1) / speed for sent, speed in zip(of, speeds)]).max(0)

    return jnp.minimum(*map(comm_s, best.domains)) if best.domains.size else comm_s()


def footprint(
    cluster: Cluster, best: Best, profiles: Profiles, job: JobSpec, workers: Int[Array, "N K"], ps: Int[Array, "N K"]
) -> Footprint:
    """The footprint of one job on one partition (no leading P axis), by its tasks per GPU group."""
    gpus = (workers * job.gpus_per_worker).astype(jnp.float32)
    cores = gpus * profiles.cpu_cores[job.model] + ps * profiles.ps_cores[job.model]
    own_cpu = (cores / cluster.group_cores).reshape(-1)
    busy, compute_s = workers > 0, profiles.compute_s[job.model]
    speed = relative_speed(profiles, job.model, cluster.group_gpu_type, cluster.group_speed, cluster.reference)
    compute = jnp.where(busy, compute_s / speed, 0.0).reshape(-1)

    sent = placement_bytes(cluster, workers, ps, job.gpus_per_worker, profiles.gradient_bytes[job.model])
    if profiles.plans.gpus.size:
        plan = jax.tree.map(lambda leaf: leaf[job.model], profiles.plans)
        planned = plan_bytes(cluster, plan, (workers * job.gpus_per_worker).astype(jnp.int32))
        sent = jnp.where(plan.gpus > 0, planned, sent)
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
