"""Who decides: a rule or a checkpoint, shown a live cluster as the simulator's state, and the fallback.

Pending gangs become queues, running pods the Running state. So the same observation is made of a live cluster as of a
simulated one, and any registered policy acts on it. Rules are played by the event loop, in Python: ready at once. All
else is a JAX program, compiled beside the planning. A policy fails when it takes too long, raises, or is shown or
produces something that is not a number. Then, and while it is compiled, a hand-written one stands in.
"""

import concurrent.futures
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import checkify
from jaxtyping import Bool, Float32, Int8, Int32, Int64, PRNGKeyArray, PyTree

from jaxsched.cluster.build import Shape
from jaxsched.cluster.hardware import partition_axes
from jaxsched.dynamics.footprint import Footprint, JobSpec, best_hardware, footprint
from jaxsched.dynamics.occupants import Occupants, with_job
from jaxsched.env.actions import apply_actions
from jaxsched.env.clock import advance, refresh
from jaxsched.env.environment import SHOWN, initial_state
from jaxsched.env.observation import observe
from jaxsched.env.state import PLACE, Action, EnvConfig, EnvParams, State, make_params
from jaxsched.errors import UserError
from jaxsched.event_loop import DecisionRounds as LoopRounds
from jaxsched.event_loop import RunningJob, why_not
from jaxsched.kube.capacity.fleet import Fleet
from jaxsched.kube.capacity.ledger import RunningPart
from jaxsched.kube.read.gangs import Gang
from jaxsched.kube.read.settings import PlanSettings
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import NEVER, JobTable

log = logging.getLogger("jaxsched.kube")

LEAST_LEFT = 0.05  # of a running gang's stated duration that is taken to be left once it has run longer than that
RESERVED = 4  # one running slot in so many is kept for gangs that a plan starts


class StateArrays(Pytree):
    """Host arrays for `to_state`; Q and R as in the environment, J = P (Q + R) rows: pending gangs, then running."""

    jobs: JobTable
    queue: Int32[np.ndarray, "P Q"]
    running_row: Int32[np.ndarray, "P R"]  # -1 = free slot
    running_workers: Int8[np.ndarray, "P R N K"]
    remaining_s: Float32[np.ndarray, "P R"]
    attained_s: Float32[np.ndarray, "V"]


def build_arrays(
    fleet: Fleet,
    settings: PlanSettings,
    queues: Sequence[Sequence[Gang]],
    running: Sequence[RunningPart],
    tenants: dict[str, int],
    merged: bool,
    now_s: float,
) -> tuple[StateArrays, list[Gang]]:
    """Show a live cluster as the simulator's arrays.

    Args:
        fleet: The GPU nodes.
        settings: Sizes of the arrays.
        queues: Pending gangs of each partition, at most `queue_slots`.
        running: What runs; the smallest parts beyond `running_slots` are seen as taken GPUs only.
        tenants: Index of each namespace, 0..V-1.
        merged: The GPU groups of a node count as one.
        now_s: Seconds since 1970.

    Returns:
        The arrays, and the gangs of the first rows of the job table.
    """
    p, q, r = fleet.shape.partitions, settings.queue_slots, settings.running_slots
    gangs = sorted((gang for queue in queues for gang in queue), key=lambda gang: (gang.submit_s, gang.key))
    jobs = blank_jobs(p * (q + r))
    for row, gang in enumerate(gangs):
        _fill_times(jobs, row, max(now_s - gang.submit_s, 0.0), gang.duration_s, settings.interval_s)
        jobs.workers[row], jobs.gpus_per_worker[row] = len(gang.workers), gang.gpus_per_worker
        jobs.ps[row], jobs.model[row], jobs.tenant[row] = len(gang.ps), gang.model, tenants[gang.namespace]
    row_of = {gang.key: row for row, gang in enumerate(gangs)}
    arrays = StateArrays(
        jobs=jobs,
        queue=np.full((p, q), -1, np.int32),
        running_row=np.full((p, r), -1, np.int32),
        running_workers=np.zeros((p, r, fleet.shape.servers, fleet.shape.groups), np.int8),
        remaining_s=np.zeros((p, r), np.float32),
        attained_s=np.zeros(settings.tenants, np.float32),
    )
    for partition, queue in enumerate(queues):
        arrays.queue[partition, : len(queue)] = [row_of[gang.key] for gang in queue]
    _fill_running(arrays, running, tenants, merged, settings.interval_s)
    return arrays, gangs


def blank_state(config: EnvConfig, params: EnvParams, settings: PlanSettings) -> State:
    """An empty cluster with a job table of P (Q + R) rows that never arrive."""
    size = params.cluster.group_gpus.shape[0] * (settings.queue_slots + settings.running_slots)
    return initial_state(config, params, jax.tree.map(jnp.asarray, blank_jobs(size)))


def to_state(params: EnvParams, blank: State, arrays: StateArrays) -> State:
    """The environment's state of a live cluster; jit-able. GPUs (`free`) are put in with every decision."""
    jobs = jax.tree.map(jnp.asarray, arrays.jobs)
    row = jnp.maximum(arrays.running_row, 0)
    spec = JobSpec(
        workers=jobs.workers[row],
        gpus_per_worker=jobs.gpus_per_worker[row],
        ps=jnp.zeros_like(row),
        model=jobs.model[row],
    )
    workers = jnp.asarray(arrays.running_workers)
    best = best_hardware(params.cluster)
    of_partition = jax.vmap(footprint, in_axes=(None, None, None, 0, 0, 0))
    prints = jax.vmap(of_partition, in_axes=(partition_axes(params.cluster), None, None, 0, 0, 0))(
        params.cluster, best, params.profiles, spec, workers.astype(jnp.int32), jnp.zeros(workers.shape, jnp.int32)
    )
    running = blank.running.replace(
        job=jnp.asarray(arrays.running_row),
        gpus_per_worker=spec.gpus_per_worker,
        duration_s=jobs.duration_s[row],
        remaining_s=jnp.asarray(arrays.remaining_s),
        occupants=jax.vmap(_seat)(blank.running.occupants, jnp.asarray(arrays.running_row) >= 0, prints, workers),
    )
    state = blank.replace(
        jobs=jobs, queue=jnp.asarray(arrays.queue), running=running, attained_s=jnp.asarray(arrays.attained_s)
    )
    return refresh(params, state)


def _seat(occupants: Occupants, there: Bool[Array, "R"], jobs: Footprint, workers: Int8[Array, "R N K"]) -> Occupants:
    """The occupants of an empty partition with the jobs that are `there`, leading axis R, one after the other."""
    slots = jnp.where(there, jnp.arange(len(there)), len(there))

    def seat(occupants: Occupants, one: tuple[Array, Footprint, Array]) -> tuple[Occupants, None]:
        slot, job, workers = one
        return with_job(occupants, there, slot, job, workers, jnp.zeros_like(workers)), None

    return lax.scan(seat, occupants, (slots, jobs, workers))[0]


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """No floating leaf holds NaN or an infinity."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def blank_jobs(size: int) -> JobTable:
    """Rows that never arrive, on the host. Estimates are the durations: nothing else is known of a live cluster."""
    columns: dict[str, Any] = {name: np.zeros(size, np.int32) for name in ("ps", "model", "tenant", "home")}
    columns |= {name: np.ones(size, np.int32) for name in ("workers", "gpus_per_worker")}
    columns["arrival"], columns["milli"] = np.full(size, NEVER, np.int32), np.zeros(0, np.int32)
    columns["allowed"] = np.zeros(0, np.int32)
    columns["lead_s"] = np.zeros(size, np.float32)
    columns["duration_s"] = columns["estimate_s"] = np.ones(size, np.float32)
    return JobTable(**columns)


def take_rows(jobs: JobTable, rows: Int64[np.ndarray, "rows"]) -> JobTable:
    """Some rows of a table on the host; what no job has (columns of size 0) stays so."""
    return jax.tree.map(lambda column: column[rows] if len(column) else column, jobs)


def _fill_times(jobs: JobTable, row: int, age_s: float, duration_s: float, interval_s: float) -> None:
    """A job that was submitted, or began, `age_s` ago."""
    intervals = int(min(age_s / interval_s, 2**30))
    jobs.arrival[row] = -intervals
    jobs.lead_s[row] = min(max(age_s - intervals * interval_s, 0.0), interval_s * 0.999)
    jobs.duration_s[row] = duration_s


def _fill_running(
    arrays: StateArrays, running: Sequence[RunningPart], tenants: dict[str, int], merged: bool, interval_s: float
) -> None:
    """Running slots and the last rows of the job table, larger gangs first."""
    jobs, (p, r) = arrays.jobs, arrays.running_row.shape
    filled, row = [0] * p, arrays.queue.size
    for part in sorted(running, key=lambda part: -part.gpus):
        arrays.attained_s[tenants[part.namespace]] += part.gpus * part.elapsed_s
        slot = part.partition, filled[part.partition]
        if slot[1] >= r - max(1, r // RESERVED):
            continue  # the smallest ones are seen as taken GPUs only
        _fill_times(jobs, row, part.elapsed_s, part.duration_s, interval_s)
        jobs.workers[row], jobs.model[row], jobs.tenant[row] = part.gpus, part.model, tenants[part.namespace]
        arrays.running_row[slot] = row
        arrays.running_workers[slot] = part.merged_workers() if merged else part.workers
        arrays.remaining_s[slot] = max(part.duration_s - part.elapsed_s, LEAST_LEFT * part.duration_s)
        filled[part.partition] += 1
        row += 1


@dataclasses.dataclass(frozen=True)
class Decision:
    """One round of all schedulers, on the host."""

    placed: Bool[np.ndarray, "P"]  # the placement was legal
    moved: bool  # some gang was placed or forwarded: another round may follow
    row: Int32[np.ndarray, "P"]  # the job table's row that was placed
    workers: Int32[np.ndarray, "P N K"]
    ps: Int32[np.ndarray, "P N K"]


class PolicyError(Exception):
    """The policy cannot be trusted with this decision; the message is a metric's label: nan, timeout or error."""


class DecisionRounds(Protocol):
    """Rounds of decisions about one state of the cluster; what a round has placed, the next one knows."""

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """Make one round of decisions.

        Args:
            free: GPUs that may be used, by the plan's own ledger.
            seed: Of what is random in this round.

        Raises:
            PolicyError: The decision cannot be trusted.
        """
        ...


class PlanningPolicy(Protocol):
    """Event loop, JAX program, or one of these with a fallback: all decide about the same arrays."""

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> DecisionRounds:
        """Read a state of the cluster.

        Args:
            fleet: The GPU nodes.
            arrays: Gangs that run and gangs that wait, as `build_arrays` makes them.
            merged: The GPU groups of a node count as one, in `arrays` too.

        Raises:
            PolicyError: The policy cannot be asked about it.
        """
        ...


class EventLoopPolicy:
    """A hand-written policy that is ready at once."""

    def __init__(self, policy: Policy, settings: PlanSettings) -> None:
        self.policy, self.settings = policy, settings
        self._config = EnvConfig(
            running_slots=settings.running_slots, queue_slots=settings.queue_slots, tenants=settings.tenants
        )
        self._params: dict[bool, EnvParams] = {}  # of the last fleet, by view

    def covers(self, fleet: Fleet) -> bool:
        """Whether the event loop has this policy."""
        return why_not(self.policy, self._config, self._params_of(fleet, merged=False), compiled=False) is None

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> "EventLoopRounds":
        """As `PlanningPolicy.begin`; the loop's job table has what runs first, then what waits."""
        first_running = arrays.queue.size
        running, waiting = int((arrays.running_row >= 0).sum()), int(arrays.queue.max(initial=-1)) + 1
        rows = np.concatenate([np.arange(first_running, first_running + running), np.arange(waiting)])
        jobs = take_rows(arrays.jobs, rows)
        running_jobs = [
            RunningJob(
                int(arrays.running_row[partition, slot]) - first_running,
                int(partition),
                arrays.running_workers[partition, slot].reshape(-1),
                float(arrays.remaining_s[partition, slot]),
            )
            for partition, slot in np.argwhere(arrays.running_row >= 0)
        ]
        interval_s = self.settings.interval_s
        rounds = LoopRounds(
            self._config,
            self._params_of(fleet, merged),
            jobs,
            self.policy,
            interval_s=interval_s,
            running=running_jobs,
            queues=[running + queue[queue >= 0] for queue in arrays.queue],
            attained_s=arrays.attained_s.tolist(),
        )
        return EventLoopRounds(rounds, running)

    def _params_of(self, fleet: Fleet, merged: bool) -> EnvParams:
        cluster, known = fleet.merged if merged else fleet.split, self._params.get(merged)
        if known is None or known.cluster is not cluster:
            known = self._params[merged] = make_params(cluster, interval_s=self.settings.interval_s)
        return known


class EventLoopRounds:
    """Rounds of one state; the first `running` rows of the loop's job table are not among those of `Decision`."""

    def __init__(self, rounds: LoopRounds, running: int) -> None:
        self._rounds, self._running = rounds, running

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """As `DecisionRounds.decide`; nothing in rules is random."""
        done = self._rounds.decide(free.reshape(len(free), -1))
        return Decision(
            placed=done.row >= 0,
            moved=done.moved,
            row=np.where(done.row >= 0, done.row - self._running, 0).astype(np.int32),
            workers=done.workers.reshape(free.shape).astype(np.int32),
            ps=done.ps.reshape(free.shape).astype(np.int32),
        )


Sizes = tuple[Shape, int]  # of the arrays, and the most GPUs of a worker


class JaxProgram:
    """Compiled when it is made, which takes from seconds to minutes."""

    def __init__(self, policy: Policy, settings: PlanSettings, fleet: Fleet) -> None:
        self.sizes = sizes_of(fleet, settings)
        config = EnvConfig(
            running_slots=settings.running_slots,
            queue_slots=settings.queue_slots,
            tenants=settings.tenants,
            largest_worker=self.sizes[1],
            largest_group=self.sizes[1],
            rounds=2**30,  # the clock never advances here
        )
        self._params = make_params(fleet.split, interval_s=settings.interval_s)
        self._blank = blank_state(config, self._params, settings)
        self._encode = jax.jit(lambda params, blank, arrays: to_state(params, blank, arrays))
        self._round = _round(policy)
        arrays, _ = build_arrays(fleet, settings, [[]] * fleet.shape.partitions, [], {}, False, 0.0)
        begun = self.begin(fleet, arrays, merged=False)
        jax.block_until_ready(self._round(jax.random.key(0), begun.params, begun.state, begun.state.free))

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool) -> "JaxRounds":
        """As `PlanningPolicy.begin`."""
        params = self._params.replace(cluster=fleet.merged if merged else fleet.split)
        return JaxRounds(self._round, params, self._encode(params, self._blank, arrays))


class JaxRounds:
    """Rounds of one state, in the view (split or merged) that it was begun with."""

    def __init__(self, compiled_round: Callable, params: EnvParams, state: State) -> None:
        self._round, self.params, self.state = compiled_round, params, state

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """As `DecisionRounds.decide`. PolicyError if the policy sees or gives something that is not a number."""
        before = self.state
        fault, (after, action, placed, row, sound) = self._round(jax.random.key(seed), self.params, before, free)
        if fault.get() or not bool(sound):
            raise PolicyError("nan")
        self.state = after
        moved = bool((~after.waited & ~before.waited).any())
        return Decision(np.asarray(placed), moved, np.asarray(row), np.asarray(action.workers), np.asarray(action.ps))


def sizes_of(fleet: Fleet, settings: PlanSettings) -> Sizes:
    """What a program is compiled for."""
    return fleet.shape, max([settings.largest_worker, *(sum(groups) for groups in fleet.groups)])


def _round(policy: Policy) -> Callable:
    """The compiled round of a policy: key, params, state, free -> NaN check, (state, action, placed, row, sound)."""

    def decide(
        key: PRNGKeyArray, params: EnvParams, state: State, free: Int32[Array, "P N K"]
    ) -> tuple[State, Action, Bool[Array, "P"], Int32[Array, "P"], Bool[Array, ""]]:
        state = state.replace(free=jnp.asarray(free))
        action = policy(key, state, params)
        after, started = apply_actions(params, state, action)
        after, _ = advance(params, after, started, jnp.int32(0))
        placed = (action.kind == PLACE) & ~state.waited & ~after.waited
        # Who has waited sees a forwarded gang at the next boundary; there is none here, so it looks again at once.
        received = (after.queue >= 0).sum(-1) > (state.queue >= 0).sum(-1)
        after = after.replace(waited=after.waited & ~received)
        partitions = jnp.arange(state.queue.shape[0])
        row = state.queue[partitions, jnp.clip(action.slot, 0, state.queue.shape[1] - 1)]
        return after, action, placed, row, all_finite(observe(SHOWN, params, state))

    return jax.jit(checkify.checkify(decide, errors=checkify.nan_checks))


FALLBACK = "pack:fifo+backfill+forward"
TIMEOUT_S = 30.0
T = TypeVar("T")


class GuardedPolicy:
    """A policy by its name or itself, and its fallback.

    Args:
        beside: compile in a thread, and let the fallback decide until then; else `prepare` waits.
        on_ready: called, in that thread, when something has been compiled.
    """

    def __init__(
        self,
        policy: str | Policy,
        settings: PlanSettings,
        timeout_s: float = TIMEOUT_S,
        *,
        beside: bool = False,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.timeout_s, self.beside, self.on_ready = settings, timeout_s, beside, on_ready
        self.main, self.fallback = parse(policy), parse(FALLBACK)
        if self.main.searches:
            raise UserError(f"policy {self.main.name!r}: searches in simulations only; take its rule, or a checkpoint")
        self.compilations, self.compile_s = 0, 0.0
        self._stand_in, self._rule = EventLoopPolicy(self.fallback, settings), EventLoopPolicy(self.main, settings)
        self._is_rule: bool | None = None  # not known before the first fleet
        self._program: JaxProgram | None = None
        self._compiling: tuple[Sizes, threading.Thread] | None = None  # for which sizes
        self._thread = _make_thread()

    def prepare(self, fleet: Fleet) -> None:
        """See that the policy is, or is being, compiled for the fleet's sizes."""
        if self._is_rule is None:
            self._is_rule = self._rule.covers(fleet)
        if self._is_rule or self.is_ready(fleet):
            return
        sizes = sizes_of(fleet, self.settings)
        if not self.beside:
            self._compile(fleet)
        elif self._compiling is None or (self._compiling[0] != sizes and not self.is_compiling()):
            self._compiling = sizes, threading.Thread(target=self._compile_beside, args=(fleet,), daemon=True)
            self._compiling[1].start()

    def is_compiling(self) -> bool:
        """Whether a thread of its own compiles now."""
        return self._compiling is not None and self._compiling[1].is_alive()

    def is_ready(self, fleet: Fleet) -> bool:
        """Whether the policy itself decides, not its stand-in."""
        program = self._program
        return bool(self._is_rule) or (program is not None and program.sizes == sizes_of(fleet, self.settings))

    def begin(self, fleet: Fleet, arrays: StateArrays, merged: bool, fallback: bool = False) -> DecisionRounds:
        """As `PlanningPolicy.begin`; `fallback`: it decides, and is trusted."""
        if fallback:
            return self._stand_in.begin(fleet, arrays, merged)
        if not _is_finite(arrays):
            raise PolicyError("nan")
        policy: PlanningPolicy | None = self._rule if self._is_rule else self._program
        assert policy is not None
        return _GuardedRounds(self, self.guard(lambda: policy.begin(fleet, arrays, merged)))

    def guard(self, call: Callable[[], T]) -> T:
        """The result of a call of the policy. PolicyError if it takes longer than the time-out, or raises."""
        future = self._thread.submit(call)
        try:
            return future.result(self.timeout_s)
        except concurrent.futures.TimeoutError:
            self._thread.shutdown(wait=False)
            self._thread = _make_thread()  # the old one is stuck; its result no longer matters
            raise PolicyError("timeout") from None
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError("error") from error

    def _compile_beside(self, fleet: Fleet) -> None:
        try:
            self._compile(fleet)
        except Exception:  # the stand-in goes on; other sizes are tried again
            log.exception("compiling %s failed; %s decides", self.main.name, self.fallback.name)
        self.on_ready()

    def _compile(self, fleet: Fleet) -> None:
        start = time.monotonic()
        self._program = JaxProgram(self.main, self.settings, fleet)
        self.compile_s, self.compilations = time.monotonic() - start, self.compilations + 1


class _GuardedRounds:
    """Rounds of a policy that may raise or hang."""

    def __init__(self, policy: GuardedPolicy, rounds: DecisionRounds) -> None:
        self._policy, self._rounds = policy, rounds

    def decide(self, free: Int32[np.ndarray, "P N K"], seed: int) -> Decision:
        """As `DecisionRounds.decide`."""
        return self._policy.guard(lambda: self._rounds.decide(free, seed))


def _make_thread() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="policy")


def _is_finite(arrays: StateArrays) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if np.issubdtype(leaf.dtype, np.floating)]
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves)
