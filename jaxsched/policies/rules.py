"""Placement rules: where the workers of one job go on one partition (docs/semantics.md, section 7)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32, Num, PRNGKeyArray, Shaped

from jaxsched.border import checked
from jaxsched.cluster.hardware import Cluster, ahead_in_rack, block_of_racks, room_of_racks, workers_within
from jaxsched.dynamics.footprint import JobSpec
from jaxsched.dynamics.resources import Layout, layout_of
from jaxsched.dynamics.traffic import rack_matrix, ring_bytes
from jaxsched.env.extensions import sharing
from jaxsched.policies.filling import fill_in_order, fill_one_by_one, fill_servers_in_order, quantise
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import MILLI, WHOLE
from jaxsched.workload.models import Profiles


class View(Pytree):
    """One partition as a rule sees it."""

    cluster: Cluster  # without the leading P axis
    free: Int32[Array, "NK"]  # whole GPUs
    total: Float32[Array, "M"]  # utilisation of every resource
    profiles: Profiles
    room: Int32[Array, "NK"]  # thousandths that fit one GPU of the group, see `sharing.room_of`
    usable: Bool[Array, "A NK"]  # as in `State`
    spare: Int32[Array, "N r"]  # what is left of what jobs reserve; r = 0 where none does


_WHOLE = 2**24  # more GPUs than a rack has

Rule = Callable[[PRNGKeyArray, View, JobSpec], Int32[Array, "NK"]]  # (key, view, job) -> workers


@checked
def capacity(view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Workers of a job that fit each group's free GPUs.

    Args:
        view: the partition.
        job: one job, leaves without axes.

    Returns:
        int32[NK]; of a job that wants a fraction of a GPU one at most.
    """
    return sharing.capacity(view.free, view.room, jnp.maximum(job.gpus_per_worker, 1), job.milli)


def for_job(view: View, job: JobSpec) -> View:
    """The view without the free GPUs that the job may not use, or for which it lacks CPUs or memory."""
    if view.usable.shape[0]:
        assert job.allowed is not None
        usable = view.usable[job.allowed]
        view = view.replace(free=jnp.where(usable, view.free, 0), room=jnp.where(usable, view.room, 0))
    if not view.spare.shape[-1]:
        return view
    assert job.asks is not None
    layout, fits = layout_of(view.cluster), capacity(view, job)
    within = to_groups(layout, workers_within(view.spare, job.asks))
    by_server = fits.reshape(layout.servers, layout.groups)
    before = (jnp.cumsum(by_server, -1) - by_server).reshape(-1)
    kept = jnp.clip(within - before, 0, fits)
    whole = jnp.where(kept < fits, kept * job.gpus_per_worker, view.free)
    if job.milli is None:
        return view.replace(free=whole)
    shares = job.milli < WHOLE
    free = jnp.where(shares, jnp.where(within > 0, view.free, 0), whole)
    return view.replace(free=free, room=jnp.where(within > 0, view.room, 0))


def fastest(view: View, job: JobSpec) -> View:
    """The view without the free GPUs below the job's tier."""
    fast = find_fast(view, job)
    return view.replace(free=jnp.where(fast, view.free, 0), room=jnp.where(fast, view.room, 0))


def find_fast(view: View, job: JobSpec) -> Bool[Array, "NK"]:
    """The groups at the job's tier: the highest speed that enough free GPUs have or surpass."""
    speed, fits = view.cluster.group_speed.reshape(-1), capacity(view, job)
    enough = jnp.where(speed >= speed[:, None], fits, 0).sum(-1) >= job.workers
    return speed >= jnp.where(enough, speed, -jnp.inf).max()


def by_racks(view: View, job: JobSpec) -> View:
    """The view without the free GPUs outside the racks, and servers of them, that are chosen for the job."""
    layout, rack, block = layout_of(view.cluster), view.cluster.server_rack, block_of_racks(view.cluster)
    in_rack = rack_matrix(view.cluster).astype(jnp.int32)
    gpus = view.cluster.group_gpus.reshape(-1)
    if view.usable.shape[0] and isinstance(job.allowed, Array):
        gpus = jnp.where(view.usable[job.allowed], gpus, 0)
    fits = per_server(layout, capacity(view, job))
    enough = room_of_racks(fits, rack, block).sum() >= job.workers
    block = jnp.where(enough, block, layout.servers)
    free = per_server(layout, view.free) @ in_rack
    key = jnp.where(free == per_server(layout, gpus) @ in_rack, _WHOLE, 0) + free

    room = room_of_racks(fits, rack, block)

    def choose(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        rest, room, takes, last = carry
        holds = room >= rest
        chosen = lowest(key, jnp.where(holds.any(), holds, room == room.max()))
        takes = jnp.where(chosen, jnp.minimum(room, rest), takes)
        return rest - jnp.where(chosen, takes, 0).sum(), jnp.where(chosen, 0, room), takes, chosen & holds

    nothing = jnp.zeros_like(room)
    start = job.workers, room, nothing, nothing > 0
    _, _, takes, last = lax.while_loop(lambda carry: (carry[0] > 0) & (carry[1] > 0).any(), choose, start)
    before = jnp.where(ahead_in_rack(fits, rack), fits, 0).sum(-1)
    alone = last & ((fits[:, None] * in_rack).max(0) >= takes)
    seen = (before < takes[rack]) | alone[rack]
    whole = job.milli == WHOLE if isinstance(job.milli, Array) else jnp.bool_(True)
    return view.replace(free=jnp.where(to_groups(layout, seen) | ~whole, view.free, 0))


def per_server(layout: Layout, values: Num[Array, "NK"]) -> Num[Array, "N"]:
    """The sum over each server's groups."""
    return values.reshape(layout.servers, layout.groups).sum(-1)


def to_groups(layout: Layout, values: Shaped[Array, "N"]) -> Shaped[Array, "NK"]:
    """Each server's value, repeated for its groups."""
    return jnp.repeat(values, layout.groups, total_repeat_length=layout.nk)


def _own_pressure(view: View) -> Float32[Array, "NK"]:
    """Use of the group's CPU and PCIe."""
    layout = layout_of(view.cluster)
    return view.total[layout.cpu] + view.total[layout.pcie]


def _shared_pressure(view: View) -> Float32[Array, "N"]:
    """Use of the server's QPI and NIC."""
    layout = layout_of(view.cluster)
    return view.total[layout.qpi] + view.total[layout.nic]


def group_pressure(view: View) -> Float32[Array, "NK"]:
    """Use of the group's CPU and PCIe and of its server's QPI and NIC."""
    return _own_pressure(view) + to_groups(layout_of(view.cluster), _shared_pressure(view))


def server_pressure(view: View) -> Float32[Array, "N"]:
    """Use of NIC and QPI and of CPU and PCIe of all groups."""
    return _shared_pressure(view) + per_server(layout_of(view.cluster), _own_pressure(view))


def lowest(key: Int32[Array, "places"], mask: Bool[Array, "places"]) -> Bool[Array, "places"]:
    """Mask of the one entry of lowest `key` under `mask` (ties: lowest index); all False if none."""
    worst = jnp.iinfo(jnp.int32).max
    choice = jnp.argmin(jnp.where(mask, key, worst))
    return (jnp.arange(key.shape[0]) == choice) & mask.any()


def container(
    view: View, job: JobSpec, group_key: Int32[Array, "NK"], server_key: Int32[Array, "N"], rack_key: Int32[Array, "T"]
) -> Bool[Array, "NK"]:
    """The smallest of group, server, rack, partition that fits the gang; of several the one of lowest key."""
    layout = layout_of(view.cluster)
    fits = capacity(view, job)
    servers = per_server(layout, fits)
    racks = rack_matrix(view.cluster).astype(jnp.int32)
    group = lowest(group_key, fits >= job.workers)
    server = to_groups(layout, lowest(server_key, servers >= job.workers))
    rack = lowest(rack_key, servers @ racks >= job.workers)
    rack = to_groups(layout, (racks * rack).any(-1))
    everything = jnp.where(rack.any(), rack, True)
    return jnp.where(group.any(), group, jnp.where(server.any(), server, everything))


def first_fit(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Groups in order of index."""
    return fill_in_order(jnp.zeros_like(view.free), capacity(view, job), job.workers)


def random(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Groups in random order."""
    order = jax.random.randint(key, view.free.shape, 0, jnp.iinfo(jnp.int32).max)
    return fill_in_order(order, capacity(view, job), job.workers)


def pack(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Best fit: the fullest smallest container, then the fewest servers."""
    layout = layout_of(view.cluster)
    free_server = per_server(layout, view.free)
    free_rack = free_server @ rack_matrix(view.cluster).astype(jnp.int32)
    inside = container(view, job, view.free, free_server, free_rack)
    fits = jnp.where(inside, capacity(view, job), 0)
    return fill_servers_in_order(-per_server(layout, fits), fits, job.workers)


def load_balance(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Each worker on the server with the least used share of its GPUs, there on the group with most free ones."""
    layout = layout_of(view.cluster)
    gpus = view.cluster.group_gpus.reshape(-1)
    server_gpus = jnp.maximum(per_server(layout, gpus), 1)

    def score(counts: Array) -> Array:
        free = view.free - counts * job.gpus_per_worker
        used = quantise(per_server(layout, gpus - free) / server_gpus)
        return to_groups(layout, used) * 1024 - free

    return fill_one_by_one(score, capacity(view, job), job.workers)


def tetris(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Each worker where its demand aligns best with what is free (the dot product of Grandl et al., SIGCOMM 2014)."""
    layout, cluster, profiles = layout_of(view.cluster), view.cluster, view.profiles
    gpus = jnp.maximum(cluster.group_gpus.reshape(-1), 1)
    wide = job.gpus_per_worker.astype(jnp.float32)
    reserved = wide if job.milli is None else wide * (job.milli * MILLI)
    compute = profiles.compute_s[job.model]
    gradient = profiles.gradient_bytes[job.model]
    sent = jnp.where(job.ps > 0, gradient, ring_bytes(gradient, job.workers * job.gpus_per_worker))
    open_share = jnp.clip(1.0 - view.total, 0.0, 1.0)
    cpu = wide * profiles.cpu_cores[job.model] / cluster.group_cores.reshape(-1) * open_share[layout.cpu]
    loaded = wide * profiles.input_bytes[job.model] / (cluster.pcie_bytes_s.reshape(-1) * compute)
    nic = jnp.minimum(sent / (cluster.nic_bytes_s * compute), 1.0) * open_share[layout.nic]
    rest = cpu + loaded * open_share[layout.pcie] + to_groups(layout, nic)

    def score(counts: Array) -> Array:
        free = view.free - counts * job.gpus_per_worker
        return -quantise(reserved / gpus * (free / gpus) + rest)

    return fill_one_by_one(score, capacity(view, job), job.workers)


def least_interference(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Groups in order of the pressure of their co-runners."""
    return fill_in_order(quantise(group_pressure(view)), capacity(view, job), job.workers)


def contention_aware(key: PRNGKeyArray, view: View, job: JobSpec) -> Int32[Array, "NK"]:
    """Local where it fits, and among the places where it fits the least loaded; else the idlest NICs."""
    layout = layout_of(view.cluster)
    nic = view.total[layout.nic]
    rack_nic = quantise(nic @ rack_matrix(view.cluster))
    inside = container(view, job, quantise(group_pressure(view)), quantise(server_pressure(view)), rack_nic)
    fits = jnp.where(inside, capacity(view, job), 0)
    return fill_servers_in_order(quantise(nic), fits, job.workers)


RULES: dict[str, Rule] = {
    "first-fit": first_fit,
    "pack": pack,
    "load-balance": load_balance,
    "tetris": tetris,
    "least-interference": least_interference,
    "contention-aware": contention_aware,
    "random": random,
}
