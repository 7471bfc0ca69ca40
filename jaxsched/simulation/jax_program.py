"""The device program of a run: chunks of decision rounds, compiled once per size of the tables.

A program is for one environment, or for a batch: then every leaf of the state has a leading axis S (one entry per
seed), and a chunk goes on until all of them are done; one that is done idles in an empty cluster, which changes no
record. On a CPU one run after the other is 2 to 4 times cheaper than a batch (measured: under vmap every inner loop
selects between whole states); an accelerator wants a batch.

The tables of running and queued jobs are only as large as a run needs, and never binding: the cost of a step grows with
both. So a run starts with small ones, stops the moment one is full (before a scheduler has decided anything in that
state), goes on with a larger one, and with a smaller one when it has been nearly empty for long. No job's times depend
on the sizes, except through the order in which float32 numbers are summed.
"""

import dataclasses
import functools
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify
from jaxtyping import Bool, Int, Int32, Key, PyTree, Shaped

from jaxsched.dynamics.occupants import Occupants
from jaxsched.env.actions import admit
from jaxsched.env.checks import check_state
from jaxsched.env.environment import is_finished
from jaxsched.env.extensions.failures import next_changes
from jaxsched.env.rollout import Collector, one_round, play_while
from jaxsched.env.state import FINISHED, WAITING, EnvConfig, EnvParams, State
from jaxsched.machine import loop_options
from jaxsched.policies.policy import Policy
from jaxsched.pytree import Pytree, smallest_type
from jaxsched.workload.jobs import NEVER

RUNNING_GROWTH, QUEUE_GROWTH = 2, 4  # each size is compiled anew
CALM_CHUNKS = 8  # a table shrinks after so many chunks that needed at most
CALM_SHARE = 0.6  # this share of the smaller one


@dataclasses.dataclass(frozen=True)
class Slots:
    """Slots per partition."""

    running: int
    queue: int


class Fitting:
    """Which sizes the tables have: grown when full, shrunk when they have been nearly empty for long."""

    def __init__(self, smallest: Slots, most_running: int) -> None:
        self.sizes = self.largest = self._smallest = smallest
        self.peak = Slots(0, 0)
        self._most_running = most_running
        self._calm: list[Slots] = []  # what the last chunks needed

    def note(self, peak_running: int, peak_queue: int, *, running_full: bool, queue_full: bool) -> bool:
        """Takes note of a chunk; True if the sizes are others now."""
        self.peak = Slots(max(self.peak.running, peak_running), max(self.peak.queue, peak_queue))
        self._calm = [*self._calm, Slots(peak_running, peak_queue)][-CALM_CHUNKS:]
        if running_full or queue_full:
            wanted = self._grown(running_full, queue_full)
        else:
            wanted = self._shrunk() if len(self._calm) == CALM_CHUNKS else self.sizes
        if wanted == self.sizes:
            return False
        self.sizes, self._calm = wanted, []
        self.largest = Slots(max(self.largest.running, wanted.running), max(self.largest.queue, wanted.queue))
        return True

    def _grown(self, running: bool, queue: bool) -> Slots:
        return Slots(
            running=min(self.sizes.running * RUNNING_GROWTH, self._most_running) if running else self.sizes.running,
            queue=self.sizes.queue * QUEUE_GROWTH if queue else self.sizes.queue,
        )

    def _shrunk(self) -> Slots:
        running = max(-(-self.sizes.running // RUNNING_GROWTH), self._smallest.running)
        queue = max(self.sizes.queue // QUEUE_GROWTH, self._smallest.queue)
        used = Slots(max(slots.running for slots in self._calm), max(slots.queue for slots in self._calm))
        return Slots(
            running=running if used.running <= CALM_SHARE * running else self.sizes.running,
            queue=queue if used.queue <= CALM_SHARE * queue else self.sizes.queue,
        )


def resize(state: State, sizes: Slots) -> State:
    """The same state with tables of `sizes` (which must hold what is in them); works with or without a leading axis."""
    host = jax.tree.map(np.asarray, state)
    running = host.running
    order = _occupied_first(running.job >= 0, sizes.running)
    occupants = _fit_occupants(running.occupants, running.job >= 0, order, sizes.running, shares=state.shares)
    fitted = jax.tree.map(lambda leaf: _fit(leaf, order, sizes.running, 0), running.replace(occupants=None))
    fitted = fitted.replace(
        occupants=occupants,
        job=_fit(running.job, order, sizes.running, -1),
        slowdown=_fit(running.slowdown, order, sizes.running, 1.0),
    )
    queued = _occupied_first(host.queue >= 0, sizes.queue)
    queue, owed_s = _fit(host.queue, queued, sizes.queue, -1), _fit(host.owed_s, queued, sizes.queue, 0)
    return jax.tree.map(jax.numpy.array, host.replace(running=fitted, queue=queue, owed_s=owed_s))


def _occupied_first(occupied: Bool[np.ndarray, "*batch S"], size: int) -> Int[np.ndarray, "*batch kept"]:
    """Slots in order, occupied ones first. AssertionError if some occupied one is left out."""
    assert occupied.sum(-1).max() <= size
    return np.argsort(~occupied, axis=-1, kind="stable")[..., :size]


def _fit_occupants(
    old: Occupants,
    active: Bool[np.ndarray, "*batch S"],
    order: Int[np.ndarray, "*batch kept"],
    slots: int,
    *,
    shares: bool,
) -> Occupants:
    """The occupants with running slots in the given order, `slots` of them, and as many places if GPUs are shared."""
    arrays = {field.name: np.asarray(getattr(old, field.name)) for field in dataclasses.fields(Occupants)[1:]}
    batch = order.ndim - 1
    new_slot = np.full((*active.shape[:-1], active.shape[-1] + 1), -1)  # the last: of a place of nobody
    np.put_along_axis(new_slot, order, np.arange(order.shape[-1]), -1)
    new_slot[..., :-1][~active] = -1
    before = arrays.pop("slot")
    slot = np.take_along_axis(new_slot, before.reshape(*active.shape[:-1], -1).astype(int), -1).reshape(before.shape)
    places = slots if shares else before.shape[-1]
    kept = _occupied_first(slot >= 0, places)

    def at_places(leaf: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        of_leaf = np.expand_dims(kept, batch) if leaf.ndim > kept.ndim else kept
        return _fit(leaf, np.broadcast_to(of_leaf, (*leaf.shape[:-1], kept.shape[-1])), places, 0)

    def in_slots(name: str, leaf: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        axis = -1 if name in ("link_use", "link_seconds") else batch
        return np.moveaxis(_fit(np.moveaxis(leaf, axis, batch), order, slots, 0), batch, axis)

    of_places = {name: at_places(arrays.pop(name)) for name in ("workers", "ps", "use", "seconds")}
    return old.replace(
        slot=_fit(slot, kept, places, -1).astype(smallest_type(slots)),
        **of_places,
        **{name: in_slots(name, leaf) for name, leaf in arrays.items()},
    )


def _fit(
    leaf: Shaped[np.ndarray, "..."], order: Int[np.ndarray, "*batch kept"], size: int, fill: float
) -> Shaped[np.ndarray, "..."]:
    """`leaf[*batch, S, ...]` in the given order of slots, filled up to `size` of them."""
    axis = order.ndim - 1
    if not leaf.shape[axis]:  # of an extension that the world does without
        return leaf
    rest = (1,) * (leaf.ndim - order.ndim)
    kept = np.take_along_axis(leaf, order.reshape(order.shape + rest), axis)
    padding = [(0, 0)] * leaf.ndim
    padding[axis] = (0, size - kept.shape[axis])
    return np.pad(kept, padding, constant_values=fill)


CHUNK_STEPS = 1024  # decision rounds per call: tenths of a second on a CPU


class ChunkSummary(Pytree):
    """What the host learns after a chunk; one value, or one per seed of a batch."""

    done: Bool[Array, "*seeds"]  # finished or past the horizon
    queue_full: Bool[Array, "*seeds"]  # some queue could not take a job from every scheduler
    running_full: Bool[Array, "*seeds"]  # a partition has no free running slot and could have more
    steps: Int32[Array, "*seeds"]  # decision rounds of this chunk
    clock: Int32[Array, "*seeds"]  # boundary; of a run that is done, the one after the last finish
    arrived: Int32[Array, "*seeds"]  # jobs so far, rejected ones included
    started: Int32[Array, "*seeds"]  # jobs so far
    finished: Int32[Array, "*seeds"]  # jobs so far
    rejected: Int32[Array, "*seeds"]  # jobs so far
    running: Int32[Array, "*seeds"]  # jobs now
    peak_running: Int32[Array, "*seeds"]  # most jobs that ran at once in a partition during this chunk
    peak_queue: Int32[Array, "*seeds"]  # the longest queue of a partition during this chunk
    illegal: Int32[Array, "*seeds"]  # illegal actions so far
    changing: Bool[Array, "*seeds"]  # servers will go out or come back


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A compiled chunk: `run(state, params, key, step, weights) -> state, ChunkSummary`; the state is donated.

    `key` is `[S]` of a batch, and the run's; `step` counts from its start, so that what is drawn does not depend on
    where chunks end. `weights` are the policy's.
    """

    run: jax.stages.Compiled
    compile_s: float


class Program:
    """The chunks of policies that differ in weights alone, by table sizes; safe to share between threads."""

    def __init__(
        self, policy: Policy, config: EnvConfig, most_running: int, *, batched: bool, checks: bool = False
    ) -> None:
        self.policy, self.config, self.most_running, self.batched = policy, config, most_running, batched
        self.checks = checks  # chunks return what `checkify` found, too
        self._chunks: dict[Slots, Chunk] = {}
        self._lock = threading.Lock()

    @property
    def smallest(self) -> Slots:
        """The sizes a run starts with."""
        return Slots(self.config.running_slots, self.config.queue_slots)

    @property
    def chunks(self) -> list[Chunk]:
        """All that have been compiled so far."""
        with self._lock:
            return list(self._chunks.values())

    def chunk(
        self,
        slots: Slots,
        state: State,
        params: EnvParams,
        key: Key[Array, "..."],
        step: Int32[Array, ""],
        weights: PyTree,
    ) -> Chunk:
        """The chunk for tables of these sizes; compiled for arguments like these if it is the first time."""
        with self._lock:
            if slots not in self._chunks:
                config = dataclasses.replace(self.config, running_slots=slots.running, queue_slots=slots.queue)
                begin = time.perf_counter()
                function = self._function(config)
                if self.checks:
                    function = checkify.checkify(function)
                function = jax.jit(function, donate_argnums=0)
                run = function.lower(state, params, key, step, weights).compile(loop_options())
                self._chunks[slots] = Chunk(run, time.perf_counter() - begin)
            return self._chunks[slots]

    def _function(self, config: EnvConfig):
        over_batch = jax.vmap if self.batched else lambda function, *_: function
        may_grow = config.running_slots < self.most_running
        signals = over_batch(functools.partial(_signals, may_grow), (0, None))
        begin, running, log_full = over_batch(_begin), over_batch(_running_now), over_batch(_is_log_full)
        fold_in, changing = over_batch(jax.random.fold_in, (0, None)), over_batch(_will_change, (0, None))

        def chunk(
            state: State, params: EnvParams, key: Key[Array, "..."], first: Int32[Array, ""], weights: PyTree
        ) -> tuple[State, ChunkSummary]:
            policy = dataclasses.replace(self.policy, weights=weights)
            step = over_batch(lambda state, key: one_round(config, params, policy, state, key))

            def going(state: State) -> Bool[Array, ""]:
                done, queue_full, running_full = signals(state, params)
                on = ~done.all() & ~(queue_full | running_full).any()
                return on & ~log_full(state).any() if state.starts.there else on

            def play(state: State, key: Key[Array, "..."]) -> tuple[State, Int32[Array, "*seeds"]]:
                state = step(state, key)
                if self.checks:
                    numbers = jnp.arange(state.clock.size).reshape(state.clock.shape)
                    over_batch(lambda state, number: check_state(params, state, number))(state, numbers)
                return state, running(state).max(-1)

            state = begin(state)
            peak = Collector(running(state).max(-1), jnp.maximum)
            state, peak_running, steps = play_while(
                going, play, state, lambda index: fold_in(key, first + index), CHUNK_STEPS, peak
            )
            done, queue_full, running_full = signals(state, params)
            return state, ChunkSummary(
                done=done,
                queue_full=queue_full,
                running_full=running_full,
                steps=steps,
                running=running(state).sum(-1),
                peak_running=peak_running,
                changing=changing(state, params),
                **_counts(state, params, done),
            )

        return chunk


def _begin(state: State) -> State:
    """The state at the start of a chunk: a smaller queue may have held arrivals back, and the host has read the log."""
    state = state.replace(backlogged=jnp.zeros_like(state.backlogged), peak_queue=jnp.int32(0))
    return admit(state.replace(starts=state.starts.replace(count=jnp.int32(0))))


def _running_now(state: State) -> Int32[Array, "P"]:
    return (state.running.job >= 0).sum(-1, dtype=jnp.int32)


def _signals(
    may_grow: bool, state: State, params: EnvParams
) -> tuple[Bool[Array, ""], Bool[Array, ""], Bool[Array, ""]]:
    """Whether the run is over, a queue is too full for what a round may bring, and a partition has no free slot."""
    over = is_finished(state) | (state.clock >= params.horizon)
    free = (state.queue < 0).sum(-1)
    if params.stops:
        free -= _running_now(state)  # each may be stopped
    room = free.min()  # every scheduler may forward a job to the same queue
    queue_full = (state.backlogged > 0) | (room < state.queue.shape[0])
    running_full = (state.running.job >= 0).all(-1).any() & may_grow
    return over, queue_full, running_full


def _is_log_full(state: State) -> Bool[Array, ""]:
    return state.starts.count + state.queue.shape[0] > state.starts.job.shape[0]  # each scheduler may start one


def _will_change(state: State, params: EnvParams) -> Bool[Array, ""]:
    """Whether servers will go out or come back."""
    if not params.failures.there:
        return jnp.array(False)
    return (next_changes(params.failures, state.faults) < NEVER).any()


def _counts(state: State, params: EnvParams, done: Bool[Array, "*seeds"]) -> dict[str, Array]:
    """What a summary counts of the jobs so far."""
    status, home = state.records.status, state.jobs.home
    lost = (home < 0) & (jnp.arange(home.shape[-1]) < state.next_job[..., None])
    ends = state.records.finish + (state.records.finish_offset_s / params.interval_s).astype(jnp.int32)
    last = ends.max(-1) + 1  # the clock of a run that is done may have skipped far beyond
    return {
        "clock": jnp.where(done, jnp.minimum(state.clock, last), state.clock),
        "arrived": state.next_job,
        "started": (status != WAITING).sum(-1, dtype=jnp.int32),
        "finished": (status == FINISHED).sum(-1, dtype=jnp.int32),
        "rejected": lost.sum(-1, dtype=jnp.int32),
        "peak_queue": state.peak_queue,
        "illegal": state.illegal,
    }
