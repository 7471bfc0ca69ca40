"""What a policy sees, what it answers, on which nodes jobs then get their GPUs, and what makes it a policy.

Whoever keeps its count, and its GPU type, keeps its nodes where it can.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int

from jaxsched.adaptive.knowing import predicted
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, State
from jaxsched.adaptive.tables import EVERY_NODES
from jaxsched.pytree import Pytree, static

# (world, state, GPUs of every job, their types, places in the order) -> GPUs on every node
Placing = Callable[[AdaptiveWorld, State, Int[Array, "J"], Int[Array, "J"], Int[Array, "J"]], Int[Array, "J N"]]


def most_free(
    world: AdaptiveWorld, state: State, gpus: Int[Array, "J"], kind: Int[Array, "J"], order: Int[Array, "J"]
) -> Int[Array, "J N"]:
    """One job after another takes the node with most free GPUs until it has enough, as Pollux' simulator places rules.

    Ties: the first node. A job that finds too few gets none.
    """
    same = _keeps(state, gpus, kind)
    kept = jnp.where(same[:, None], state.place, 0)
    chosen = (gpus > 0) & ~same
    sequence, count = jnp.argsort(jnp.where(chosen, order, jnp.iinfo(jnp.int32).max)), chosen.sum()

    def one(carry: tuple) -> tuple:
        i, place, free = carry
        job = sequence[i]
        taken = _from_the_most(jnp.where(world.node_type == kind[job], free, 0), gpus[job], max(world.widths))
        taken = jnp.where(taken.sum() == gpus[job], taken, 0)
        return i + 1, place.at[job].set(taken), free - taken

    begun = jnp.zeros((), jnp.int32), kept, world.node_gpus - kept.sum(0, dtype=jnp.int32)
    return jax.lax.while_loop(lambda carry: carry[0] < count, one, begun)[1]


def whole_nodes(
    world: AdaptiveWorld, state: State, gpus: Int[Array, "J"], kind: Int[Array, "J"], order: Int[Array, "J"]
) -> Int[Array, "J N"]:
    """From the widest to the narrowest, for `tables.widths`: no job on several nodes shares one.

    A job keeps its nodes if no wider one has taken them. Else it takes the node, or nodes, on which it displaces the
    fewest GPUs of jobs that would have stayed; of these the fullest; of these the first. `order` counts among equals.
    A job with another number of GPUs gets none.
    """
    width, most = jnp.asarray(world.widths, jnp.int32)[kind], max(world.widths)
    gpus = jnp.where(_whole(gpus, width), gpus, 0)
    same = _keeps(state, gpus, kind)
    rank = _rank_of_widest(gpus, order)
    highest = (most + 1) * most + most
    new = (gpus > 0) & ~same
    first, last = jnp.where(new, rank, gpus.shape[0]).min(), jnp.where(new, rank, -1).max()
    sequence = jnp.zeros_like(rank).at[rank].set(jnp.arange(gpus.shape[0], dtype=jnp.int32))

    def going(carry: tuple) -> Array:  # after the last new job all keep their nodes, unless somebody took them
        i, _, free, staying = carry
        return (i <= last) | (staying > free).any()

    def one(carry: tuple) -> tuple:
        i, place, free, staying = carry
        job = sequence[i]
        wanted, own = gpus[job], state.place[job]
        staying = staying - jnp.where(same[job], own, 0)
        each = jnp.minimum(wanted, width[job])
        room = (free >= each) & (world.node_type == kind[job])
        displaced = jnp.maximum(staying - (free - each), 0)
        least = (most + 1) * displaced + free
        taken = jnp.where(_lowest(jnp.where(room, least, _FAR), wanted // each, highest) & room, each, 0)
        taken = jnp.where(same[job] & (free >= own).all(), own, taken)
        taken = jnp.where(taken.sum() == wanted, taken, 0)
        return i + 1, place.at[job].set(taken), free - taken, staying

    kept = jnp.where(same[:, None], state.place, 0)  # before the first new job all keep their nodes
    before = jnp.where((rank < first)[:, None], kept, 0).sum(0, dtype=jnp.int32)
    staying = kept.sum(0, dtype=jnp.int32) - before
    return jax.lax.while_loop(going, one, (first, kept, world.node_gpus - before, staying))[1]


def _whole(gpus: Int[Array, "J"], width: Int[Array, "J"]) -> Bool[Array, "J"]:
    """Whether these numbers are `tables.widths`."""
    count = gpus // width
    within, beyond = gpus & (gpus - 1) == 0, (count <= EVERY_NODES) | (count & (count - 1) == 0)
    return jnp.where(gpus < width, within, (gpus % width == 0) & beyond)


def _rank_of_widest(gpus: Int[Array, "J"], order: Int[Array, "J"]) -> Int[Array, "J"]:
    """Places in the order from most GPUs to fewest, then by `order`, then by row. Comparing is faster than sorting."""
    rows = jnp.arange(gpus.shape[0])
    earlier = (order < order[:, None]) | ((order == order[:, None]) & (rows < rows[:, None]))
    return ((gpus > gpus[:, None]) | ((gpus == gpus[:, None]) & earlier)).sum(1, dtype=jnp.int32)


_FAR = 1 << 20


def _keeps(state: State, gpus: Int[Array, "J"], kind: Int[Array, "J"]) -> Bool[Array, "J"]:
    return (gpus > 0) & (gpus == state.gpus) & (kind == state.kind)


def _from_the_most(free: Int[Array, "N"], wanted: Int[Array, ""], most: int) -> Int[Array, "N"]:
    """So many GPUs, from the nodes with most free ones first."""
    levels = jnp.arange(most, 0, -1, dtype=jnp.int32)[:, None]
    there = free == levels  # [most, N]
    flat = (there * levels).reshape(-1)
    before = (jnp.cumsum(flat) - flat).reshape(there.shape)
    return jnp.where(there, jnp.clip(wanted - before, 0, levels), 0).sum(0).astype(jnp.int32)


def _lowest(key: Int[Array, "N"], count: Int[Array, ""], most: int) -> Bool[Array, "N"]:
    """The `count` nodes of the lowest key, of those up to `most`; ties: the first. Bisection is faster than sorting."""
    short = jnp.full((), -1, jnp.int32)  # the highest level at which there are too few
    for bit in reversed(range(most.bit_length())):
        short = jnp.where((key <= short + (1 << bit)).sum() < count, short + (1 << bit), short)
    below, at = key <= short, key == short + 1
    return below | (at & (jnp.cumsum(at) <= count - below.sum()))


class View(Pytree):
    """What a policy sees at the end of a round. J jobs in the order of submission, T GPU types, R1 numbers of GPUs."""

    now_s: Float64[Array, ""]
    total: Int[Array, "T"]  # GPUs of the cluster
    active: Bool[Array, "J"]  # submitted, and not done
    gpus: Int[Array, "J"]  # now
    kind: Int[Array, "J"]  # their type
    tuned_gpus: Int[Array, "J"]  # what its user would have asked for
    least_gpus: Int[Array, "J"]
    most_gpus: Int[Array, "J"]
    age_s: Float64[Array, "J"]
    restart_s: Float64[Array, "J"]
    deadline_s: Float64[Array, "J"]  # inf: none
    restarts: Int[Array, "J"]
    widest: Int[Array, "J"]  # most GPUs so far
    service: Float64[Array, "J"]  # GPU-seconds held
    progress: Float64[Array, "J"]
    work: Float64[Array, "J"]  # progress at the end
    waiting_s: Float64[Array, "J"]  # what is left of a restart
    memory: Float64[Array, "J"]  # what the policy remembered; inf at first
    update_s: Float64[Array, "J T R1"]  # seconds of an update, likewise; inf: not possible
    iterations: Float64[Array, "J"]  # updates from the end of this epoch on, at least 1
    of_plans: Float64[Array, "M E T R1"]  # goodput by plan and epoch; where jobs predict it, each is a plan
    plan: Int[Array, "J"]
    epoch: Int[Array, "J"]
    widths: tuple[int, ...] = static()  # GPUs of a node, by type

    @property
    def goodput(self) -> Float64[Array, "J T R1"]:
        """On the fewest nodes, in this epoch; 0: not possible."""
        return self.of_plans[self.plan, self.epoch]

    def goodput_at(self, gpus: Int[Array, "C"] | Int[Array, "J 1"], kind: int = 0) -> Float64[Array, "J C"]:
        """The same at some numbers of GPUs, of one type: what is not asked for is not computed."""
        return self.of_plans[self.plan[:, None], self.epoch[:, None], kind, gpus]


class Allocation(Pytree):
    """GPUs of every job. `order` says who is placed first (None: in the order of submission)."""

    gpus: Int[Array, "J"]
    kind: Int[Array, "J"] | None = None  # GPU types; None: the first
    order: Int[Array, "J"] | None = None
    memory: Float64[Array, "J"] | None = None  # None: as before


@dataclasses.dataclass(frozen=True)
class AllocationPolicy:
    """A policy.

    Attributes:
        name: how it is called.
        allocate: decides, in JAX.
        placing: `most_free` places anything; `whole_nodes` takes powers of two and whole nodes only.
        own_batch: jobs choose their batch sizes; else they have what their users would have tuned.
        tuned_gpus: it gives every job the GPUs that its user would have tuned, or none.
        from_goodput: it goes by goodput on one GPU type, which may as well be what jobs predict.
    """

    name: str
    allocate: Callable[[View], Allocation | Array]
    placing: Placing = most_free
    own_batch: bool = True
    tuned_gpus: bool = False
    from_goodput: bool = False


def view_of(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> View:
    """What policies see."""
    tables, plan = world.tables, jobs.plan
    row = jnp.minimum(state.epoch, tables.epochs[plan] - 1)
    of_plans, of_plan, of_epoch = tables.goodput, plan, row
    if world.fits:  # every job has predictions of its own
        of_plans = predicted(world, jobs, state, row)[:, None, None]
        of_plan, of_epoch = jnp.arange(row.shape[0], dtype=jnp.int32), jnp.zeros_like(row)
    return View(
        now_s=state.now_s,
        total=jnp.zeros(len(world.widths), jnp.int32).at[world.node_type].add(world.node_gpus),
        active=jobs.real & (jobs.submit_s <= state.now_s) & (state.finish_s == jnp.inf),
        gpus=state.gpus,
        kind=state.kind,
        tuned_gpus=jobs.tuned_gpus,
        least_gpus=jobs.least_gpus,
        most_gpus=jobs.most_gpus,
        age_s=state.now_s - jobs.submit_s,
        restart_s=jobs.restart_s,
        deadline_s=jobs.deadline_s,
        restarts=state.restarts,
        widest=state.widest,
        service=state.service,
        progress=state.progress,
        work=tables.ends[plan, tables.epochs[plan] - 1],
        waiting_s=state.waiting_s,
        memory=state.memory,
        of_plans=of_plans,
        plan=of_plan,
        epoch=of_epoch,
        update_s=tables.update_s[plan],
        iterations=tables.iterations[plan, row],
        widths=world.widths,
    )
