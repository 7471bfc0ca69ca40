"""How fast placed jobs run: the footprint of a placement, and slowdowns under the totals of a moment."""

import chex
import jax.numpy as jnp
from jax import Array, lax

from jaxsched.cluster.hardware import Cluster
from jaxsched.dynamics.interference import Interference
from jaxsched.dynamics.resources import CPU, LINK, NIC, PCIE, QPI, Layout, comm_capacity, layout_of
from jaxsched.dynamics.traffic import placement_bytes, ring_bytes
from jaxsched.workload.models import Profiles


@chex.dataclass(frozen=True)
class JobSpec:
    """What the dynamics need to know of a job; every leaf has the same leading shape `[...]`."""

    workers: Array  # int32
    gpus_per_worker: Array  # int32
    ps: Array  # int32
    model: Array  # int32


@chex.dataclass(frozen=True)
class Footprint:
    """What a placed job asks of its partition; fixed for as long as it runs."""

    use: Array  # float32[..., M], utilisation of each resource
    base: Array  # float32[..., M - NK], uncontended seconds of communication per step on each resource
    compute: Array  # float32[..., NK], seconds of computation per step on each group that holds workers, else 0
    ideal: Array  # float32[...], seconds per step on the ideal placement
    sens_cpu: Array  # float32[...]
    sens_pcie: Array  # float32[...]
    model: Array  # int32[...]


@chex.dataclass(frozen=True)
class Best:
    """The cluster's best hardware, against which `duration_s` is defined. Scalars."""

    group_gpus: Array  # int32
    server_gpus: Array  # int32
    groups: Array  # int32, groups with GPUs of the server that has most of them
    pcie_bytes_s: Array  # float32
    qpi_bytes_s: Array  # float32
    nic_bytes_s: Array  # float32


def best_hardware(cluster: Cluster) -> Best:
    """The largest of everything over a whole cluster (with the leading P axis)."""
    gpus = cluster.group_gpus
    real = gpus.sum(-1) > 0
    return Best(
        group_gpus=gpus.max(),
        server_gpus=gpus.sum(-1).max(),
        groups=(gpus > 0).sum(-1).max(),
        pcie_bytes_s=jnp.where(gpus > 0, cluster.pcie_bytes_s, 0.0).max(),
        qpi_bytes_s=jnp.where(real, cluster.qpi_bytes_s, 0.0).max(),
        nic_bytes_s=jnp.where(real, cluster.nic_bytes_s, 0.0).max(),
    )


def ideal_step_s(best: Best, profiles: Profiles, job: JobSpec) -> Array:
    """float32[...]: seconds per step on the ideal placement (docs/semantics.md, section 5)."""
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
    return profiles.compute_s[job.model] + jnp.where(job.ps > 0, ps_s, ring_s)


def footprint(cluster: Cluster, best: Best, profiles: Profiles, job: JobSpec, workers: Array, ps: Array) -> Footprint:
    """The footprint of one job on one partition (no leading P axis); `workers, ps: int32[N, K]`."""
    gpus = (workers * job.gpus_per_worker).astype(jnp.float32)
    cores = gpus * profiles.cpu_cores[job.model] + ps * profiles.ps_cores[job.model]
    own_cpu = (cores / cluster.group_cores).reshape(-1)
    busy = workers > 0
    compute = jnp.where(busy, profiles.compute_s[job.model] / cluster.group_speed, 0.0).reshape(-1)

    sent = placement_bytes(cluster, workers, ps, job.gpus_per_worker, profiles.gradient_bytes[job.model])
    capacity = comm_capacity(cluster)
    base = sent / capacity
    sens_cpu = profiles.sens_cpu[job.model]
    solo = (compute * (1.0 + sens_cpu * (jnp.maximum(own_cpu, 1.0) - 1.0))).max() + base.max()
    solo = jnp.maximum(solo, 1e-9)

    layout = layout_of(cluster)
    loaded = jnp.zeros_like(capacity).at[: layout.nk].set((gpus * profiles.input_bytes[job.model]).reshape(-1))
    return Footprint(
        use=jnp.concatenate([own_cpu, (sent + loaded) / capacity / solo]),
        base=base,
        compute=compute,
        ideal=ideal_step_s(best, profiles, job),
        sens_cpu=sens_cpu,
        sens_pcie=profiles.sens_pcie[job.model],
        model=job.model,
    )


@chex.dataclass(frozen=True)
class Contenders:
    """Footprints with the resource axis first, ready for `slowdown`: reductions over a leading axis vectorise."""

    use: Array  # float32[M, ...]
    base: Array  # float32[M - NK, ...]
    compute: Array  # float32[NK, ...]
    ideal: Array  # float32[...]
    sens_cpu: Array  # float32[...]
    sens_pcie: Array  # float32[...]
    model: Array  # int32[...]


def contenders(rows: Footprint) -> Contenders:
    """The same footprints, resource axis first."""
    moved = {name: jnp.moveaxis(rows[name], -1, 0) for name in ("use", "base", "compute")}
    kept = {name: rows[name] for name in ("ideal", "sens_cpu", "sens_pcie", "model")}
    return Contenders(**moved, **kept)


def slowdown(
    interference: Interference, weights: chex.ArrayTree, layout: Layout, rows: Contenders, total: Array
) -> Array:
    """float32: step time over ideal step time, at least 1, for jobs `rows` under the summed utilisation `total`.

    Args:
        rows: leading axis M, then any shape; the rows' own use is part of `total`.
        total: float32[M, ...], broadcast against the rows' shape; the result has the broadcast shape.
    """
    shape = jnp.broadcast_shapes(rows.use.shape[1:], total.shape[1:])

    def stretch(channel: int, own: Array, all_use: Array) -> Array:
        return interference(weights, channel, rows.model, own, jnp.maximum(all_use - own, 0.0))

    def on_group(slowest: Array, group: tuple[Array, ...]) -> tuple[Array, None]:
        cpu, pcie, compute, all_cpu, all_pcie = group
        factor = 1.0 + rows.sens_cpu * (jnp.maximum(cpu, 1.0) * stretch(CPU, cpu, all_cpu) - 1.0)
        factor += rows.sens_pcie * (stretch(PCIE, pcie, all_pcie) - 1.0)
        return jnp.maximum(slowest, compute * factor), None

    cpu, pcie = layout.cpu, layout.pcie
    groups = (rows.use[cpu], rows.use[pcie], rows.compute, total[cpu], total[pcie])
    compute, _ = lax.scan(on_group, jnp.zeros(shape), groups)

    comm = jnp.zeros(shape)
    for channel, part in ((PCIE, layout.pcie), (QPI, layout.qpi), (NIC, layout.nic), (LINK, layout.link)):

        def on_resource(slowest: Array, resource: tuple[Array, ...], channel: int = channel) -> tuple[Array, None]:
            use, base, all_use = resource
            return jnp.maximum(slowest, base * stretch(channel, use, all_use)), None

        base = rows.base[part.start - layout.nk : part.stop - layout.nk]
        comm, _ = lax.scan(on_resource, comm, (rows.use[part], base, total[part]))
    return jnp.maximum((compute + comm) / jnp.maximum(rows.ideal, 1e-9), 1.0)
