"""Queues: which job comes first, and which jobs could start now (docs/semantics.md, section 7)."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32, Int32

from jaxsched.border import checked
from jaxsched.cluster.hardware import Cluster, block_of_racks, room_of_racks, workers_within
from jaxsched.env import levels
from jaxsched.env.extensions.gpu_sets import asks_of, of_each_job, spare
from jaxsched.env.extensions.sharing import fits_gpus, gpus_of, is_fraction, room_of
from jaxsched.env.levels import LevelTable
from jaxsched.env.state import EnvParams, State, queue_room
from jaxsched.errors import UserError
from jaxsched.pytree import on_device
from jaxsched.user_code import call, check_shape, name_of
from jaxsched.workload.jobs import look_up

BASIC = ("fifo", "sjf", "area", "tenants")
ORDERS = (*BASIC, *levels.ORDERS)
FREELY = 2**20  # forwards of a job: more than it will ever have
TIMELESS = tuple(order for order in ORDERS if order not in ("tenants", levels.THEMIS))

# One of `ORDERS`, levels out of a table, or keys: the lowest comes first.
Order = str | LevelTable | Callable[[State, EnvParams], Float32[Array, "P Q"]]


@checked
@dataclasses.dataclass(frozen=True)
class Discipline:
    """Which queued jobs a scheduler may start, and in which order. UserError on values out of range."""

    order: Order = "fifo"
    backfill: bool = False  # jobs behind one that cannot start may start
    reserve: bool = False  # GPUs are kept for the first blocked gang, see `env.reservations`
    window: int = 1  # so many jobs that may start are looked at
    consolidate: bool = False  # a gang starts only on as few servers as it would need in an empty partition
    racks: bool = False  # a gang keeps to as few racks as it can, at most a block of each, and leaves others whole
    preempt: bool = False  # jobs that come first may take the place of running ones
    faster: bool = False  # jobs that would start go where their GPUs are faster; with `preempt` running ones move, too
    hysteresis: float = 0.0  # of that: by which share more a running job must have received or have left
    quantum: float = 18000.0  # of the order `tiresias`: GPU-seconds that a job receives before it falls behind

    def __post_init__(self) -> None:
        if isinstance(self.order, str) and self.order not in ORDERS:
            raise UserError(f"order: {self.order!r} should be one of {', '.join(ORDERS)}")
        if self.window < 1:
            raise UserError(f"window: {self.window} should be at least 1")
        if self.reserve and not self.backfill:
            raise UserError("reserve: needs backfill, it holds back jobs that would pass a blocked gang")
        if self.preempt and (not has_levels(self.order) or self.reserve):
            raise UserError(
                f"preempt: needs one of the orders {', '.join(levels.ORDERS)}, and does not go with reserve"
            )
        if self.racks and self.preempt:
            raise UserError("racks: does not go with preempt, which does not say whose racks become free")
        if not (0.0 <= self.hysteresis < 1e6 and 0.0 < self.quantum < 1e12):
            raise UserError("hysteresis, quantum: should be numbers, hysteresis at least 0, quantum above 0")

    @property
    def timeless(self) -> bool:
        """Which jobs may start, and which of them is first, depends on what is queued and free, not on the time."""
        return not self.reserve and (self.order in TIMELESS or isinstance(self.order, LevelTable))

    @property
    def needs_estimates(self) -> bool:
        """Which jobs may start, and which of them is first, depends on how long they are expected to run."""
        return self.reserve or self.order in ("sjf", "area", levels.SRTF, levels.SRSF, levels.THEMIS)

    @property
    def needs_history(self) -> bool:
        """Which job is first depends on the jobs that have finished."""
        return self.order == levels.GITTINS


def has_levels(order: Order) -> bool:
    """Running jobs can be compared with queued ones by it."""
    return order in levels.ORDERS or isinstance(order, LevelTable)


# What is on or off in a discipline: options in the names of policies, entries in the cards of checkpoints.
SWITCHES = tuple(field.name for field in dataclasses.fields(Discipline) if field.type is bool)


def check_shown(queue: Discipline, looks_ahead: bool) -> None:
    """UserError on a queue that schedulers who choose from menus cannot have."""
    if queue.racks and looks_ahead:
        raise UserError(
            "racks: not with looks_ahead, which knows nothing of racks when it says what waiting would bring"
        )
    if queue.faster and not looks_ahead:
        raise UserError("faster: only with looks_ahead, else networks say who is forwarded")


def order_keys(queue: Discipline, state: State, params: EnvParams) -> Float32[Array, "P Q"]:
    """Keys of the queued jobs: the job with the lowest key comes first; infinite in empty slots.

    Raises:
        UserError: only the event loop has the order.
    """
    row = jnp.maximum(state.queue, 0)
    jobs, order = state.jobs, queue.order
    if callable(order):
        who = f"order {name_of(order)}"
        key = call(who, order, state, params)
        check_shape(who, key, state.queue.shape, "a key for each place in each queue")
    elif has_levels(order):
        raise UserError(f"order: {order!r} is for the event loop; in JAX it should be one of {', '.join(BASIC)}")
    elif order == "fifo":
        key = row.astype(jnp.float32)
    elif order == "sjf":
        key = jobs.estimate_s[row]
    elif order == "area":
        key = area_s(state)
    elif order == "tenants":
        key = state.attained_s[look_up(jobs.tenant, row)]
    else:
        raise UserError(f"order: {order!r} has no keys in JAX")
    return jnp.where(state.queue >= 0, key, jnp.inf)


def area_s(state: State) -> Float32[Array, "P Q"]:
    """GPUs times estimated run time of the queued jobs; stale in empty slots."""
    row = jnp.maximum(state.queue, 0)
    return gpus_of(state.jobs, row) * state.jobs.estimate_s[row]


def first(
    keys: Float32[Array, "P Q"], rows: Int32[Array, "P Q"], mask: Bool[Array, "P Q"]
) -> tuple[Int32[Array, "P"], Bool[Array, "P"]]:
    """Slot of the first job under `mask` by (key, row of the table), and whether there is one."""
    lowest = jnp.where(mask, keys, jnp.inf).min(-1, keepdims=True)
    tied = mask & (keys == lowest)
    slot = jnp.argmin(jnp.where(tied, rows, jnp.iinfo(jnp.int32).max), -1)
    return slot.astype(jnp.int32), mask.any(-1)


def next_job(
    queue: Discipline, keys: Float32[Array, "P Q"], state: State, can_start: Bool[Array, "P Q"]
) -> tuple[Int32[Array, "P"], Bool[Array, "P"]]:
    """Slot of the job that each scheduler starts next, and whether it may start; see `env.reservations.openings`."""
    if queue.backfill:
        return first(keys, state.queue, can_start)
    slot, _ = first(keys, state.queue, state.queue >= 0)
    return slot, can_start[jnp.arange(slot.shape[0]), slot]


def feasible(state: State, cluster: Cluster, *, consolidate: bool = False, racks: bool = False) -> Bool[Array, "P Q"]:
    """Whether the queued job's gang fits the free GPUs of its partition, and a running slot is free.

    With `consolidate`, on as few servers as the gang would need in an empty partition; with `racks` in as few racks.
    """
    row = jnp.maximum(state.queue, 0)

    def fits_seen(state: State, cluster: Cluster) -> Bool[Array, "P Q"]:
        wide, room = look_up(state.jobs.gpus_per_worker, row) - 1, room_of(state.free, state.shared)
        if state.asks:
            of_server = jnp.take_along_axis(_workers_by_server(state), wide[..., None], 1)
            fits = _fits_servers(state, row, of_server, room.max(-1)[:, None], spare(state, cluster)[:, None])
        else:
            fits = fits_gpus(
                state, row, jnp.take_along_axis(_workers_that_fit(state), wide, -1), room.max((1, 2))[:, None]
            )
        if consolidate:
            fits &= jax.vmap(functools.partial(_consolidated, state))(*_both(state, cluster), row)
        if racks:
            fits &= jax.vmap(functools.partial(_in_fewest_racks, state))(*_both(state, cluster), *_racks(cluster), row)
        return fits

    fits = of_each_job(state, cluster, row, fits_seen)
    return fits & (state.running.job < 0).any(-1, keepdims=True) & (state.queue >= 0)


def feasible_at(
    state: State, row: Int32[Array, "*jobs"], cluster: Cluster, *, consolidate: bool = False, racks: bool = False
) -> Bool[Array, "*jobs P"]:
    """Whether the gang of job `row` fits each partition, where a running slot is free; see `feasible`."""

    def fits_seen(state: State, cluster: Cluster) -> Bool[Array, "*jobs P"]:
        wide, room = look_up(state.jobs.gpus_per_worker, row) - 1, room_of(state.free, state.shared)
        if state.asks:
            of_server = _workers_by_server(state).swapaxes(0, 1)[wide]
            fits = _fits_servers(state, row[..., None], of_server, room.max(-1), spare(state, cluster))
        else:
            fits = fits_gpus(state, row[..., None], _workers_that_fit(state).T[wide], room.max((1, 2)))
        if consolidate:
            everywhere = jax.vmap(functools.partial(_consolidated, state), (0, 0, 0, 0, None), -1)
            fits &= everywhere(*_both(state, cluster), row)
        if racks:
            everywhere = jax.vmap(functools.partial(_in_fewest_racks, state), (0, 0, 0, 0, 0, 0, None), -1)
            fits &= everywhere(*_both(state, cluster), *_racks(cluster), row)
        return fits

    return of_each_job(state, cluster, row, fits_seen) & (state.running.job < 0).any(-1)


def movable(
    state: State, params: EnvParams, can_start: Bool[Array, "P Q"], *, consolidate: bool = False, racks: bool = False
) -> Bool[Array, "P Q P"]:
    """Whether the queued job could start at this other partition now, but not here (`can_start`; none: anywhere).

    It has forwards left, and the other's queue has a free slot. `consolidate`, `racks`: see `feasible`.
    """
    row = jnp.maximum(state.queue, 0)
    blocked = (state.queue >= 0) & ~can_start & may_be_forwarded(params, state, row)
    room = queue_room(state) > 0 if state.faults.there else (state.queue < 0).any(-1)
    open_to = feasible_at(state, row, params.cluster, consolidate=consolidate, racks=racks) & room
    elsewhere = ~jnp.eye(state.queue.shape[0], dtype=bool)[:, None]
    return open_to & elsewhere & blocked[..., None]


def forward_freely(params: EnvParams) -> EnvParams:
    """The parameters of a world in which nothing limits how often a job is forwarded."""
    return params.replace(max_forwards=on_device(FREELY, jnp.int32))


def may_be_forwarded(params: EnvParams, state: State, row: Int32[Array, "*jobs"]) -> Bool[Array, "*jobs"]:
    """Whether jobs have forwards left."""
    return state.records.forwards[row] < params.max_forwards


def _workers_that_fit(state: State) -> Int32[Array, "P largest"]:
    """Workers of 1, 2, ... GPUs that fit the free GPUs of each partition."""
    return (state.free[..., None] // jnp.arange(1, state.largest_worker + 1)).sum((1, 2))


def _workers_by_server(state: State) -> Int32[Array, "P largest N"]:
    """Workers of 1, 2, ... GPUs that fit the free GPUs of each server."""
    return (state.free[:, None] // jnp.arange(1, state.largest_worker + 1)[:, None, None]).sum(-1)


def _fits_servers(
    state: State,
    row: Int32[Array, "*#jobs"],
    workers: Int32[Array, "*#jobs N"],
    room: Int32[Array, "*#jobs N"],
    left: Int32[Array, "*#jobs N 2"],
) -> Bool[Array, "*#jobs"]:
    """As `fits_gpus`, of what fits each server by its GPUs, where so much is `left` of what jobs reserve."""
    within = workers_within(left, asks_of(state, row)[..., None, :])
    return fits_gpus(state, row, jnp.minimum(workers, within).sum(-1), jnp.where(within > 0, room, 0).max(-1))


def _both(state: State, cluster: Cluster) -> tuple[Array, Array, Array, Array]:
    """GPUs, free ones, and what jobs may reserve, in all and now, of each partition."""
    left = spare(state, cluster) if state.asks else cluster.reservable
    return cluster.group_gpus, state.free, cluster.reservable, left


def _consolidated(
    state: State,
    gpus: Int32[Array, "N K"],
    free: Int32[Array, "N K"],
    reservable: Int32[Array, "N 2"],
    left: Int32[Array, "N 2"],
    row: Int32[Array, "*jobs"],
) -> Bool[Array, "*jobs"]:
    """Whether the gangs of jobs fit as few servers as if all `gpus` of a partition were free; so do all fractions."""
    sizes = jnp.arange(1, state.largest_worker + 1)[:, None, None]
    wide = look_up(state.jobs.gpus_per_worker, row) - 1

    def roomiest(gpus: Array, left: Array) -> Array:
        if not state.asks:
            return on_roomiest(gpus // sizes)[wide]
        within = workers_within(left, asks_of(state, row)[..., None, :])
        return on_roomiest(jnp.minimum((gpus // sizes).sum(-1)[wide], within)[..., None])

    fits = fits_fewest(roomiest(gpus, reservable), roomiest(free, left), look_up(state.jobs.workers, row))
    return fits | is_fraction(state, row)


def _racks(cluster: Cluster) -> tuple[Array, Array]:
    """Of each partition the rack of every server, and the block of every rack."""
    return cluster.server_rack, block_of_racks(cluster)


def _in_fewest_racks(
    state: State,
    gpus: Int32[Array, "N K"],
    free: Int32[Array, "N K"],
    reservable: Int32[Array, "N 2"],
    left: Int32[Array, "N 2"],
    rack: Int32[Array, "N"],
    block: Int32[Array, "T"],
    row: Int32[Array, "*jobs"],
) -> Bool[Array, "*jobs"]:
    """Whether the gangs of jobs fit as few racks as if all `gpus` of a partition were free; so do all fractions."""
    wide, workers = look_up(state.jobs.gpus_per_worker, row), look_up(state.jobs.workers, row)

    def of_server(gpus: Array, left: Array) -> Array:
        fits = (gpus // jnp.maximum(wide, 1)[..., None, None]).sum(-1)
        return jnp.minimum(fits, workers_within(left, asks_of(state, row)[..., None, :])) if state.asks else fits

    def roomiest(by_server: Array, block: Array) -> Array:
        return on_roomiest(room_of_racks(by_server, rack, block)[..., None])

    empty, now, endless = of_server(gpus, reservable), of_server(free, left), jnp.full_like(block, rack.shape[0])
    limited = roomiest(empty, block)
    fits = jnp.where(
        limited[..., -1] >= workers,
        fits_fewest(limited, roomiest(now, block), workers),
        fits_fewest(roomiest(empty, endless), roomiest(now, endless), workers),
    )
    return fits | is_fraction(state, row)


def fits_fewest(
    empty: Int32[Array, "*jobs N"], now: Int32[Array, "*jobs N"], workers: Int32[Array, "*jobs"]
) -> Bool[Array, "*jobs"]:
    """Whether gangs fit as few servers now as in an empty partition; see `on_roomiest` for `now` and `empty`."""
    fewest = (empty < workers[..., None]).sum(-1, keepdims=True)
    last = empty.shape[-1] - 1
    there = jnp.take_along_axis(now, jnp.minimum(fewest, last), -1)
    return ((there >= workers[..., None]) & (fewest <= last))[..., 0]


def on_roomiest(capacity: Int32[Array, "*sizes N K"]) -> Int32[Array, "*sizes N"]:
    """Workers that fit the 1, 2, ... roomiest servers."""
    return jnp.cumsum(-jnp.sort(-capacity.sum(-1), axis=-1), -1)
