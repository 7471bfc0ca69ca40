"""The running jobs of a partition by the GPU groups that they are in (docs/performance.md, "What a state holds").

Every worker has a GPU at least, so that few jobs are in a group: it has a place for as many as it has GPUs. What a job
takes of its server's QPI and NIC stands at the first of its groups there. Links are of all running slots.

A job's entries stay until another job gets its running slot, or a place is needed: clocks write nothing here. Jobs that
share GPUs may be more; then every group has a place for every running slot. Parameter servers alone need no GPU, so
`has_room` says whether they find a place.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int, Int8, Int16, Int32, Num, Shaped, UInt8

from jaxsched.dynamics.batching import on_cpu
from jaxsched.dynamics.footprint import Footprint
from jaxsched.dynamics.resources import PCIE, QPI, Layout
from jaxsched.pytree import Pytree, smallest_type, static

IN_SERVERS = 4  # channels that an entry has: CPU, PCIE, QPI and NIC


class Occupants(Pytree):
    """Who is where, `G` places in a group; without the axis P of one partition. What free places hold is stale."""

    layout: Layout = static()  # of the resource axis

    slot: Int[Array, "P N K G"]  # running slot of the job; -1, or one whose job has left: the place is free
    workers: Int8[Array, "P N K G"]
    ps: Int16[Array, "P N K G"]
    use: Float32[Array, "P channels N K G"]  # utilisation of CPU, PCIe, QPI and NIC
    seconds: Float32[Array, "P channels N K G"]  # of a step: computation, and uncontended communication
    link_use: Float32[Array, "P E R"]
    link_seconds: Float32[Array, "P E R"]
    ideal: Float32[Array, "P R"]  # this and the following as in `Footprint`
    least: Float32[Array, "P R"]
    sens_cpu: Float32[Array, "P R"]
    sens_pcie: Float32[Array, "P R"]
    model: Int32[Array, "P R"]
    last_groups: UInt8[Array, "P R bytes"]  # bits: where the job that had the running slot last has workers


def no_occupants(layout: Layout, partitions: int, slots: int, places: int) -> Occupants:
    """Of empty partitions with so many running `slots`, and `places` in each group."""
    p, r, groups = partitions, slots, (layout.servers, layout.groups, places)
    return Occupants(
        layout=layout,
        slot=jnp.full((p, *groups), -1, smallest_type(slots)),
        workers=jnp.zeros((p, *groups), jnp.int8),
        ps=jnp.zeros((p, *groups), jnp.int16),
        use=jnp.zeros((p, IN_SERVERS, *groups), jnp.float32),
        seconds=jnp.zeros((p, IN_SERVERS, *groups), jnp.float32),
        link_use=jnp.zeros((p, layout.links, r), jnp.float32),
        link_seconds=jnp.zeros((p, layout.links, r), jnp.float32),
        ideal=jnp.zeros((p, r), jnp.float32),
        least=jnp.ones((p, r), jnp.float32),
        sens_cpu=jnp.zeros((p, r), jnp.float32),
        sens_pcie=jnp.zeros((p, r), jnp.float32),
        model=jnp.zeros((p, r), jnp.int32),
        last_groups=jnp.zeros((p, r, -(-layout.nk // 8)), jnp.uint8),
    )


def at_places(occupants: Occupants, of_slots: Shaped[Array, "R"], otherwise: float = 0) -> Shaped[Array, "..."]:
    """Of the job at each place, by running slots; `otherwise` where there has been none."""
    slot = occupants.slot.astype(jnp.int32)
    found = of_slots.at[jnp.maximum(slot, 0)].get(mode="promise_in_bounds")
    return jnp.where(slot >= 0, found, otherwise)


def by_slots(occupants: Occupants, of_places: Shaped[Array, "N K G"]) -> Num[Array, "R N K"]:
    """What is at places, by running slots and groups. A large array: for what is seldom looked at."""
    slots = jnp.arange(occupants.ideal.shape[-1])[:, None, None, None]
    return jnp.where(occupants.slot == slots, of_places, 0).sum(-1)


def in_groups(occupants: Occupants, per_worker: Num[Array, "R"]) -> Num[Array, "N K"]:
    """The sum over the workers in each group of what each has, by running slots; 0 for jobs that do not count."""
    return (occupants.workers * at_places(occupants, per_worker)).sum(-1, dtype=per_worker.dtype)


def in_servers(occupants: Occupants, per_worker: Num[Array, "R asks"]) -> Num[Array, "N asks"]:
    """As `in_groups`, of several things, in each server."""
    return jax.vmap(in_groups, in_axes=(None, -1), out_axes=-1)(occupants, per_worker).sum(1)


def own_use(occupants: Occupants, active: Bool[Array, "R"]) -> Float32[Array, "M"]:
    """Utilisation of each resource by the `active` ones of the running jobs of one partition."""
    here = jnp.where(at_places(occupants, active, False), occupants.use, 0.0).sum(-1)
    links = occupants.link_use @ active.astype(jnp.float32)
    in_groups, in_servers = here[: PCIE + 1].reshape(-1), here[QPI:].sum(-1).reshape(-1)
    return jnp.concatenate([in_groups, in_servers, links])


def totals_at_places(layout: Layout, total: Float32[Array, "M *more"]) -> Float32[Array, "channels N K *more"]:
    """`total` of CPU, PCIe, QPI and NIC of each group and its server."""
    servers, more = layout.servers, total.shape[1:]
    of_groups = total[: layout.qpi.start].reshape(2, servers, layout.groups, *more)
    of_servers = total[layout.qpi.start : layout.link.start].reshape(2, servers, 1, *more)
    return jnp.concatenate([of_groups, jnp.broadcast_to(of_servers, of_groups.shape)])


def has_room(
    occupants: Occupants,
    active: Bool[Array, "R"],
    free: Int32[Array, "N K"],
    workers: Int32[Array, "N K"],
    ps: Int32[Array, "N K"],
) -> Bool[Array, ""]:
    """Whether the tasks of a gang find places, and leave one for every job that could come to the `free` GPUs."""
    left = occupants.slot.shape[-1] - at_places(occupants, active, False).sum(-1, dtype=jnp.int32)
    alone = (ps > 0) & (workers == 0)
    return ((left > jnp.where(alone, free, 0)) | (workers + ps == 0)).all()


class Entry(Pytree):
    """What is written down of a job that gets a running slot; leading axes of several such jobs."""

    slot: Int32[Array, ""]  # its running slot; out of range: nothing is written
    slots: Int[Array, "N K G"]  # `Occupants.slot` of its partition with it
    place: Int32[Array, "NK"]  # among all places of the partition; beyond them where it has no tasks
    workers: Int32[Array, "NK"]
    ps: Int32[Array, "NK"]
    use: Float32[Array, "channels NK"]
    seconds: Float32[Array, "channels NK"]
    last_groups: UInt8[Array, "bytes"]
    job: Footprint


def entry_of(
    slots: Int[Array, "N K G"],
    active: Bool[Array, "R"],
    slot: Int32[Array, ""],
    job: Footprint,
    workers: Int[Array, "N K"],
    ps: Int[Array, "N K"],
) -> Entry:
    """Where a job gets its places in one partition.

    Args:
        slots: `Occupants.slot`, with a free place in each of the job's groups (see `has_room`).
        active: running slots with jobs.
        slot: a free one, for the job.
        job: what it asks for.
        workers: of the job. ps: likewise.
    """
    layout, places = job.layout, slots.shape[-1]
    starts, there = slot < active.shape[0], workers + ps > 0
    taken = (slots >= 0) & active.at[jnp.maximum(slots.astype(jnp.int32), 0)].get(mode="promise_in_bounds")
    place, group = jnp.argmin(taken, -1).reshape(-1), jnp.arange(layout.nk)
    written = starts & there.reshape(-1) & ~taken.all(-1).reshape(-1)
    here = (written[:, None] & (place[:, None] == jnp.arange(places))).reshape(slots.shape)
    first = there & (jnp.cumsum(there, -1) == 1)
    in_servers = jnp.array([True, True, False, False])[:, None, None] | first

    def of_groups(per_resource: Array) -> Array:
        of_group = jnp.where(in_servers, totals_at_places(layout, per_resource), 0.0)
        return of_group.reshape(IN_SERVERS, -1)

    return Entry(
        slot=slot,
        slots=jnp.where(here, slot.astype(slots.dtype), jnp.where(starts & (slots == slot), -1, slots)),
        place=group * places + jnp.where(written, place, slots.size),
        workers=workers.reshape(-1),
        ps=ps.reshape(-1),
        use=of_groups(job.use),
        seconds=of_groups(jnp.concatenate([job.compute, job.base])),
        last_groups=jnp.packbits((workers > 0).reshape(-1)),
        job=job,
    )


def put_entry(occupants: Occupants, at: tuple[Int32[Array, "*jobs"], ...], entry: Entry) -> Occupants:
    """The occupants with an entry, or with one in each of the partitions `at`; `()`: `occupants` are of one.

    An accelerator touches only the job's places; a CPU is faster with all places of a partition.
    """
    layout, slot, job = occupants.layout, entry.slot, entry.job

    def put(old: Array, new: Array, *before: Array) -> Array:
        """`before`: indices of the axes before that of places, each with as many axes after those of `at`."""
        flat, new = old.reshape(*old.shape[:-3], -1), new.astype(old.dtype)
        if on_cpu() and not at:
            groups, places = layout.nk, old.shape[-1]
            here = entry.place[:, None] == jnp.arange(groups * places).reshape(groups, places)
            return jnp.where(here, new[..., None], flat.reshape(*new.shape, places)).reshape(old.shape)
        further = (None,) * (len(before) + 1)
        index = (*(one[(..., *further)] for one in at), *before, entry.place[(..., *further[1:], slice(None))])
        return flat.at[index].set(new, mode="drop", unique_indices=True).reshape(old.shape)

    def put_at_slot(old: Array, new: Array) -> Array:
        return old.at[(*at, slot)].set(new, mode="drop")

    def put_on_links(old: Array, new: Array) -> Array:
        index = (*(one[..., None] for one in at), jnp.arange(layout.links), slot[..., None])
        return old.at[index].set(new, mode="drop")

    channels, wires = jnp.arange(IN_SERVERS)[:, None], layout.link.start - layout.nk  # without the CPU
    return occupants.replace(
        slot=occupants.slot.at[at].set(entry.slots, mode="drop"),
        workers=put(occupants.workers, entry.workers),
        ps=put(occupants.ps, entry.ps),
        use=put(occupants.use, entry.use, channels),
        seconds=put(occupants.seconds, entry.seconds, channels),
        link_use=put_on_links(occupants.link_use, job.use[..., layout.link]),
        link_seconds=put_on_links(occupants.link_seconds, job.base[..., wires:]),
        ideal=put_at_slot(occupants.ideal, job.ideal),
        least=put_at_slot(occupants.least, job.least),
        sens_cpu=put_at_slot(occupants.sens_cpu, job.sens_cpu),
        sens_pcie=put_at_slot(occupants.sens_pcie, job.sens_pcie),
        model=put_at_slot(occupants.model, job.model),
        last_groups=put_at_slot(occupants.last_groups, entry.last_groups),
    )


def with_job(
    occupants: Occupants,
    active: Bool[Array, "R"],
    slot: Int32[Array, ""],
    job: Footprint,
    workers: Int[Array, "N K"],
    ps: Int[Array, "N K"],
) -> Occupants:
    """The occupants of one partition with a job in the running slot `slot`; out of range: as they are.

    Args: as of `entry_of`.
    """
    return put_entry(occupants, (), entry_of(occupants.slot, active, slot, job, workers, ps))


def count_last(occupants: Occupants) -> Int32[Array, "N K"]:
    """How many running slots' last jobs have workers in each group, also those that have left."""
    layout = occupants.layout
    bits = jnp.unpackbits(occupants.last_groups, axis=-1, count=layout.nk)
    return bits.sum(-2, dtype=jnp.int32).reshape(layout.servers, layout.groups)
