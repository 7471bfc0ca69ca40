"""Why a job was put where it was: what else was on offer at that moment, and what each place would have cost.

Engines keep no account of what they did not do. So the run is played once more in the environment, which pauses before
the first start of every job that is asked for: there all candidates are appraised, and the place that the policy takes.
What only the event loop plays is done once more from the record of its starts and stops (`repeat`).
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Int, Int32, PRNGKeyArray, PyTree

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.actions import admit
from jaxsched.env.environment import initial_state, is_finished
from jaxsched.env.extensions.pairs import as_is
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.extensions.preemption import may_stop
from jaxsched.env.queues import forward_freely
from jaxsched.env.rollout import action_of
from jaxsched.env.stages import transition
from jaxsched.env.state import PLACE, STOP, Action, EnvConfig, EnvParams, State
from jaxsched.event_loop import Run, numba_missing
from jaxsched.machine import loop_options
from jaxsched.options import MOST_ROUNDS
from jaxsched.policies.base import Judgement, place_or_forward
from jaxsched.policies.offers import Offers, appraise
from jaxsched.policies.policy import Policy
from jaxsched.policies.window import make_window, with_step_times
from jaxsched.pytree import zeros_of
from jaxsched.simulation.outcome import STOPPED, Attempts, Outcome
from jaxsched.simulation.settings import Settings, env_config, env_params, pairs_of
from jaxsched.workload.jobs import NEVER, JobTable, to_table


def order_of_starts(
    policy: Policy, result: Outcome, config: EnvConfig, params: EnvParams, interval_s: float, pairs: Pairs | None
) -> Int[np.ndarray, "A"]:
    """The place of each attempt of a run in the order of starts.

    Where jobs are not stopped runs keep no log of it, and the event loop plays the run again.
    """
    attempts = result.attempts
    if result.interruptions is not None:
        return np.arange(len(attempts.job))
    room = {"queue_slots": len(result.jobs), "running_slots": result.stats.running_slots}
    config = dataclasses.replace(config, starts=1, **room)
    table = to_table(result.jobs, interval_s, sets=config.gpu_sets, asks=config.asks)
    plain = numba_missing() is not None
    run = Run(config, params, table, policy, interval_s, in_python=plain, pairs=pairs)
    run.go_on()
    assert run.log is not None
    turn = np.full(len(result.jobs), NEVER)
    turn[run.log["job"]] = np.arange(len(run.log["job"]))
    return turn[attempts.job]


def repeat(
    attempts: Attempts, turn: Int[np.ndarray, "A"], jobs: JobTable, interval_s: float, shared_gpus: int
) -> tuple[Policy, JobTable]:
    """What does once more what was done in a run, and its jobs, which come first to where they first start.

    Args:
        attempts: of the run.
        turn: see `order_of_starts`.
        jobs: of the run.
        interval_s: seconds between boundaries.
        shared_gpus: GPUs of a group that jobs may share, as in `EnvConfig`.
    """
    order = np.argsort(attempts.job, kind="stable")
    job = attempts.job[order]
    first, after = (np.searchsorted(job, np.arange(len(jobs.arrival)), side=side) for side in ("left", "right"))
    gpu = np.full(len(job), -1) if attempts.gpu is None else attempts.gpu

    def column(values: np.ndarray, last: int) -> Array:
        return jnp.asarray(np.concatenate([values[order], np.full((1, *values.shape[1:]), last)]), jnp.int32)

    def boundary(seconds: np.ndarray) -> np.ndarray:
        return np.rint(seconds / interval_s)

    script = _Script(
        first=jnp.asarray(first, jnp.int32),
        after=jnp.asarray(after, jnp.int32),
        turn=column(turn, int(NEVER)),
        partition=column(attempts.partition, -1),
        start=column(boundary(attempts.start_s), int(NEVER)),
        stop=column(np.where(attempts.ended == STOPPED, boundary(attempts.end_s), NEVER), int(NEVER)),
        workers=column(attempts.workers, 0),
        gpu=column(np.where(gpu < 0, -1, gpu % max(shared_gpus, 1)), -1),
    )
    home, some = np.array(jobs.home), after > first
    home[some] = attempts.partition[order][first[some]]
    return Policy("record", script.act), jobs.replace(home=jnp.asarray(home))


@dataclasses.dataclass(frozen=True, eq=False)
class _Script:
    """The attempts of `J` jobs as arrays, those of a job side by side; behind them one that never comes."""

    first: Int32[Array, "J"]  # attempt of each job
    after: Int32[Array, "J"]  # attempt of the next job
    turn: Int32[Array, "A"]
    partition: Int32[Array, "A"]
    start: Int32[Array, "A"]  # boundary
    stop: Int32[Array, "A"]  # boundary at which a scheduler stops it; NEVER
    workers: Int32[Array, "A NK"]
    gpu: Int32[Array, "A"]  # as in `Action`

    def act(self, key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        """What is due: stops first, then jobs go to where they will start, then starts."""
        p = jnp.arange(state.queue.shape[0])
        at = self.first + _interruptions(state)
        attempt = jnp.where(at < self.after, at, self.turn.shape[0] - 1)
        running, queued = state.running.job, attempt[jnp.maximum(state.queue, 0)]
        stop = (running >= 0) & (self.stop[attempt[jnp.maximum(running, 0)]] <= state.clock) & may_stop(params, state)
        there = self.partition[queued]
        leaves = (state.queue >= 0) & (there >= 0) & (there != p[:, None])
        due = (state.queue >= 0) & (there == p[:, None]) & (self.start[queued] <= state.clock)
        forwards = leaves.any(-1)
        some = jnp.where(forwards[:, None], leaves, due)
        slot = jnp.argmin(jnp.where(some, self.turn[queued], NEVER), -1).astype(jnp.int32)
        chosen, starts = queued[p, slot], due.any(-1) & ~forwards
        gpu = self.gpu[chosen] if state.shares else None
        action = place_or_forward(state, starts, slot, self.workers[chosen], slot, there[p, slot], forwards, gpu)
        if not state.service.there:
            return action
        return action.replace(kind=jnp.where(stop.any(-1), STOP, action.kind), stop=stop)


def _interruptions(state: State) -> Int32[Array, "J"]:
    """How often each job has been stopped, by a scheduler or a failure."""
    stops = state.service.stops if state.service.there else jnp.zeros_like(state.jobs.arrival)
    return stops + state.faults.count if state.faults.there else stops


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a job could start, and at what cost, if nothing else came or went."""

    servers: tuple[tuple[int, int], ...]  # rows in the inventory, and how many workers each would have
    slowdown: float  # of the job, over its run time alone on the best places
    others_s: float  # seconds that the jobs which run there would need longer, together
    taken: bool


@dataclasses.dataclass(frozen=True)
class Decision:
    """The first start of a job."""

    job: int  # position in the job list
    at_s: float
    places: list[Place]  # the least cost of all jobs together first
    sure: Mapping[str, float] = dataclasses.field(default_factory=dict)  # of a learned policy: `Judgement`, by field


@dataclasses.dataclass(frozen=True)
class _Programs:
    """`onward(state, wanted, count)` up to the next start that is wanted, `explain`, and `step` with an action."""

    onward: Callable[[State, Bool[Array, "J"], Int32[Array, ""]], tuple[State, Action, Int32[Array, ""], Array]]
    explain: Callable[[State, Action, Int32[Array, ""]], Offers]
    step: Callable[[State, Action], State]
    judge: Callable[[State], Judgement | None]


def decisions_of(
    policy: Policy, result: Outcome, cluster: Cluster, settings: Settings, jobs: Int[np.ndarray, "D"]
) -> list[Decision]:
    """The decisions that started `jobs`, in order of time.

    Those from which on the run is not repeated are left out: a policy that draws at random goes another way.
    Where a run is repeated from its record, several starts at one boundary may be in another order between schedulers.

    Args:
        result: of `policy` under `settings`, placements recorded.
        jobs: positions in the job list; those that never started are left out.
    """
    config = env_config(cluster, [result.jobs], settings)
    room = result.stats.peak_running + 1
    slots = {"running_slots": room, "queue_slots": result.stats.peak_queue + room + cluster.shape[0]}
    config = dataclasses.replace(config, **slots, starts=0)
    params = env_params(cluster, config, settings, [result.jobs])
    table = to_table(result.jobs, settings.interval_s, sets=config.gpu_sets, asks=config.asks)
    if policy.spec is not None and policy.spec.beyond_jax is not None:
        turn = order_of_starts(policy, result, config, params, settings.interval_s, pairs_of(settings, 0))
        policy, table = repeat(result.attempts, turn, table, settings.interval_s, config.shared_gpus)
        most = slots["queue_slots"] * cluster.shape[0]  # jobs wait where they will start
        config = dataclasses.replace(config, queue_slots=most, rounds=MOST_ROUNDS)
        params = forward_freely(params)
    state = admit(initial_state(config, params, table, pairs_of(settings, 0)))
    key = jax.random.fold_in(jax.random.key(settings.seed), 0)
    programs = _programs(config, params, policy, key)
    wanted = np.zeros(len(result.jobs), bool)
    wanted[jobs] = True
    attempts = result.attempts
    started, place = np.unique(attempts.job, return_index=True)
    first = dict(zip(started.tolist(), place.tolist()))
    found: list[Decision] = []
    count, server_id = jnp.int32(0), np.asarray(cluster.server_id)
    while wanted.any():
        state, action, count, paused = programs.onward(state, jnp.asarray(wanted), count)
        if not paused:
            break
        kind, slot, queue = (np.asarray(leaf) for leaf in (action.kind, action.slot, state.queue))
        p = np.arange(len(kind))
        row = np.where((kind == PLACE) & ~np.asarray(state.waited), queue[p, slot], -1)
        at_s = int(state.clock) * float(settings.interval_s)
        for p in np.flatnonzero((row >= 0) & wanted[row]).tolist():
            workers = np.asarray(action.workers[p]).reshape(-1)
            if row[p] not in first or not _same(attempts, first[int(row[p])], p, at_s, workers):
                return found
            on = jax.device_get(programs.explain(state, action, jnp.int32(p)))
            told = jax.device_get(programs.judge(state))
            sure = {} if told is None else {name: float(leaf[p]) for name, leaf in vars(told).items()}
            found.append(Decision(int(row[p]), at_s, _places(on, result, int(row[p]), server_id[p]), sure))
            wanted[row[p]] = False
        state = programs.step(state, action)
    return found


def find_most_lost(result: Outcome, count: int) -> Int[np.ndarray, "D"]:
    """The jobs whose run took longest over their run time alone."""
    lost_s = np.nan_to_num(result.run_s - result.jobs.duration_s, nan=-np.inf)
    return np.argsort(-lost_s, kind="stable")[: min(count, int(result.finished.sum()))]


def _same(attempts: Attempts, first: int, p: int, at_s: float, workers: Int[np.ndarray, "NK"]) -> bool:
    """Whether a start is that of an attempt of the run."""
    there = attempts.start_s[first] == at_s and attempts.partition[first] == p
    return bool(there and (attempts.workers[first] == workers).all())


def _programs(config: EnvConfig, params: EnvParams, policy: Policy, key: PRNGKeyArray) -> _Programs:
    def starts(state: State, action: Action, wanted: Bool[Array, "J"]) -> Bool[Array, "P"]:
        row = state.queue[jnp.arange(state.queue.shape[0]), action.slot]
        return (action.kind == PLACE) & ~state.waited & (row >= 0) & wanted[jnp.maximum(row, 0)]

    def step(state: State, action: Action) -> State:
        return transition(config, params, state, action, policy.asks_at)[0]

    def going(carry: tuple[State, Action, Array, Array]) -> Array:
        state, _, _, paused = carry
        return ~paused & ~is_finished(state) & (state.clock < params.horizon)

    def act(state: State, count: Array) -> Action:
        return action_of(config, params, policy, state, jax.random.fold_in(key, count))

    def onward(state: State, wanted: Bool[Array, "J"], count: Array) -> tuple[State, Action, Array, Array]:
        def turn(carry: tuple[State, Action, Array, Array]) -> tuple[State, Action, Array, Array]:
            state, _, count, _ = carry
            action = act(state, count)
            paused = starts(state, action, wanted).any()
            state = lax.cond(paused, lambda: state, lambda: step(state, action))
            return state, action, count + ~paused, paused

        return lax.while_loop(going, turn, (state, zeros_of(act, state, count), count, jnp.array(False)))

    def explain(state: State, action: Action, p: Int32[Array, ""]) -> Offers:
        partitions, there = state.queue.shape[0], as_is(params, state)
        window = make_window(state, there, action.slot[:, None], (jnp.arange(partitions) == p)[:, None])
        taken = action.workers.reshape(partitions, -1)[p]
        part = jax.tree.map(lambda leaf: leaf[p], with_step_times(there, window))
        gpu = jnp.int32(-1) if action.gpu is None else action.gpu[p]
        return appraise(there, part, p, jnp.int32(0), (taken, gpu))

    def judge(state: State) -> Judgement | None:
        return policy.judge and policy.judge(state, params, policy.weights)

    programs = (onward, explain, step, judge)
    return _Programs(*(jax.jit(program, compiler_options=loop_options()) for program in programs))


def _places(on: Offers, result: Outcome, job: int, server_id: Int[np.ndarray, "N"]) -> list[Place]:
    """Every place once, although several candidates may be the same."""
    by_server = np.asarray(on.workers).reshape(len(on.workers), len(server_id), -1).sum(-1)
    rows: dict[bytes, Place] = {}
    for i in [len(on.workers) - 1, *np.flatnonzero(on.valid[:-1]).tolist()]:  # the last one is what the policy took
        servers = tuple((int(server_id[n]), int(by_server[i, n])) for n in np.flatnonzero(by_server[i]))
        place = Place(servers, float(on.own[i]), float(on.added_s[i]), taken=not rows)
        rows.setdefault(np.asarray(on.workers[i]).tobytes(), place)
    duration_s = float(result.jobs.duration_s[job])
    return sorted(rows.values(), key=lambda place: place.slowdown * duration_s + place.others_s)
