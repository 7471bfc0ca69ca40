"""How random cases (`tests.support.random_cases`) are drawn and played: the programs that tests share."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxsched.dynamics.batching import ACCELERATOR, traced_for
from jaxsched.env.environment import initial_state, is_finished
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.extensions.preemption import may_stop
from jaxsched.env.knowledge import mask_unknown
from jaxsched.env.levels import LevelTable
from jaxsched.env.rollout import one_round, one_turn, play_while
from jaxsched.env.stages import Playing, at_boundary, transition
from jaxsched.env.state import ALWAYS, STOP, WAIT, Action, Asked, EnvConfig, EnvParams, State
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse
from jaxsched.policies.spec import BY_HAND, MATCH, SeekWeights, parse_spec
from jaxsched.semantics import RUN_BINS, WIDTH_CLASSES
from jaxsched.workload.jobs import JobTable
from tests.oracle.preemption import Preemption
from tests.support.random_cases import INTERVALS_S, SHAPES, Case, Shape, pad_cluster, random_case, random_jobs
from tests.support.specs import GREEDY, SPECS

__all__ = ["Case", "Shape", "pad_cluster", "random_case", "random_jobs"]

STATUS = ("queued", "running", "finished")  # of Records.status; queued covers backlog and not yet arrived


@st.composite
def cases(draw, shape: str, **fixed) -> Case:
    """Hypothesis: fewer jobs, like servers, leaf-spine, minutes and exact estimates are what it shrinks to."""
    values = dict(
        count=draw(st.integers(1, SHAPES[shape].jobs)),
        homogeneous=draw(st.sampled_from([True, False, False])),
        tree=draw(st.booleans()),
        interval_s=draw(st.sampled_from(INTERVALS_S)),
        error=draw(st.sampled_from([0.0, 0.0, 0.4, 1.5])),
        fractions=draw(st.sampled_from([0.0, 0.5, 0.9])) if SHAPES[shape].shared else 0.0,
    )
    return random_case(draw(st.integers(0, 2**32 - 1)), shape, **(values | fixed))


# What stopping jobs costs.
COSTS = st.builds(
    Preemption,
    restart_s=st.sampled_from([0.0, 13.7, 60.0, 900.0]),
    checkpoint_interval_s=st.sampled_from([0.0, 0.0, 41.3, 600.0]),
    min_run_s=st.sampled_from([0.0, 0.0, 120.0, 1000.0]),
)


# -------------------------------------------------------------------------------------------------------------- running


def policy_of(spec: str) -> Policy:
    """The policy of a name. `tableN` in it stands for the levels of `random_table(N)`, `seekN` for `random_seek(N)`."""
    table, seek = re.search(r"table(\d+)", spec), re.search(r"seek(\d+)", spec)
    if spec == STOPPING:
        return Policy(STOPPING, _stopping)
    if table is not None:
        of = parse_spec(spec.replace(table[0], "mlfq"))
        queue = dataclasses.replace(of.queue, order=random_table(int(table[1])))
        return Policy(spec, dataclasses.replace(of, queue=queue))
    if seek is not None:
        of = parse_spec(spec.replace(seek[0], "seek"))
        return Policy(spec, dataclasses.replace(of, seek=random_seek(int(seek[1]))))
    return parse(spec)


STOPPING = "stopping"  # the name of a policy that is a function, which stops jobs


def _stopping(key, state: State, params: EnvParams, weights) -> Action:
    """`first-fit`, and who waits in vain stops jobs that have not been stopped before, the last row first."""
    action = parse("first-fit:sjf")(key, state, params)
    running = state.running.job
    fresh = may_stop(params, state) & (state.service.stops[jnp.maximum(running, 0)] < 1)
    last = jnp.where(fresh, running, -1)
    in_vain = (action.kind == WAIT) & (state.queue >= 0).any(-1) & (state.queue < 0).any(-1) & ~state.waited
    stop = fresh & (last == last.max(-1, keepdims=True)) & in_vain[:, None]
    return action.replace(kind=jnp.where(stop.any(-1), STOP, action.kind), stop=stop)


def random_table(seed: int) -> LevelTable:
    """Levels that rise and fall; cases are short, so that the first bins matter most."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-4, 5, (WIDTH_CLASSES, RUN_BINS)) * rng.choice([1, 7, 25_000])
    return LevelTable(tuple(tuple(map(int, row)) for row in rows), margin=int(rng.choice([0, 0, 1, 6])))


def random_seek(seed: int) -> SeekWeights:
    """Numbers that 32-bit floats hold; some seeds stay near those by hand."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(0, 1, len(BY_HAND.numbers)) * rng.choice([0.2, 1.0])
    numbers += np.array(BY_HAND.numbers) * (rng.random() < 0.5)
    return SeekWeights(tuple(map(float, numbers.astype(np.float32))))


def compiled_with(spec: str, shape: Shape) -> tuple[str, ...]:
    """The policies that are compiled together with `spec` for `shape`."""
    rows = [row for name, one in SHAPES.items() if one == shape for row in (SPECS[name], GREEDY[name])]
    return next((row for row in rows if spec in row), (spec,))


MOST_ROUNDS = 200_000


@functools.cache
def jit_start(config: EnvConfig):
    """Compiled `(params, table) -> State`."""
    return jax.jit(functools.partial(initial_state, config))


@functools.cache
def jit_transition(config: EnvConfig):
    """Compiled `(params, state, action) -> (State, reward, finished)`."""

    def step(params: EnvParams, state: State, action: Action):
        state, gain = transition(config, params, state, action)
        return state, gain, is_finished(state)

    return jax.jit(step)


@functools.cache
def jit_policy(spec: str):
    """Compiled `(key, state, params) -> Action` of a hand-written policy."""
    return jax.jit(policy_of(spec))


class OneOf:
    """A policy that is one of several, by its index."""

    def __init__(self, specs: tuple[str, ...], index, asked: Asked = ALWAYS):
        """Of these names."""
        self.policies, self.index, self.asks_at = [policy_of(spec) for spec in specs], index, asked

    def __call__(self, key, state: State, params: EnvParams) -> Action:
        """What that one does: no GPU is named by those that never do so."""
        specs = [policy.spec for policy in self.policies if policy.spec is not None]
        names = any(of.rule == MATCH for of in specs) and state.shares

        def full(policy: Policy, *seen) -> Action:
            action = policy(*seen)
            if names and action.gpu is None:
                action = action.replace(gpu=jnp.full(len(action.kind), -1))
            return action

        branches = [functools.partial(full, policy) for policy in self.policies]
        return jax.lax.switch(self.index, branches, key, state, params)


@functools.cache
def jit_run(config: EnvConfig, specs: tuple[str, ...], asked: Asked = ALWAYS):
    """Compiled `(params, table, index, most_rounds, pairs) -> (State, rounds)`: a run of the policy `specs[index]`."""

    def run(params: EnvParams, table: JobTable, index, most_rounds=MOST_ROUNDS, pairs: Pairs | None = None):
        def play(state: State, key):
            return one_round(config, params, OneOf(specs, index, asked), state, key), None

        key_of = functools.partial(jax.random.fold_in, jax.random.key(0))
        start = initial_state(config, params, table, pairs)
        state, _, rounds = play_while(lambda state: ~is_finished(state), play, start, key_of, most_rounds)
        return state, rounds

    return jax.jit(run)


@functools.cache
def jit_run_in_turns(config: EnvConfig, specs: tuple[str, ...]):
    """As `jit_run`, in turns as on an accelerator."""

    def run(params: EnvParams, table: JobTable, index, most_turns=MOST_ROUNDS, pairs: Pairs | None = None):
        def play(playing: Playing, key):
            return one_turn(config, params, OneOf(specs, index), playing, key)[0], None

        def going(playing: Playing):
            return ~is_finished(playing.state) | ~playing.decides

        key_of = functools.partial(jax.random.fold_in, jax.random.key(0))
        start = at_boundary(initial_state(config, params, table, pairs))
        playing, _, turns = play_while(going, play, start, key_of, most_turns)
        return playing.state, turns

    def traced(*args):
        with traced_for(ACCELERATOR):
            return run(*args)

    return jax.jit(traced)


def run_in_turns(case: Case, spec: str, config: EnvConfig, specs: tuple[str, ...] = ()) -> State:
    """As `run`, in turns as on an accelerator."""
    specs = specs or compiled_with(spec, case.shape)
    state, turns = jit_run_in_turns(config, specs)(case.params, case.table, specs.index(spec), MOST_ROUNDS, case.pairs)
    assert int(turns) < MOST_ROUNDS, f"not finished: clock {state.clock}, queue {state.queue}"
    return state


def run(case: Case, spec: str, config: EnvConfig, specs: tuple[str, ...] = (), asked: Asked = ALWAYS) -> State:
    """The state when all jobs of `case` are done; `specs` are compiled together with `spec`, once for all cases."""
    specs = specs or compiled_with(spec, case.shape)
    state, rounds = jit_run(config, specs, asked)(case.params, case.table, specs.index(spec), MOST_ROUNDS, case.pairs)
    assert int(rounds) < MOST_ROUNDS, f"not finished: clock {state.clock}, queue {state.queue}"
    return state


def watched_run(case: Case, spec: str, config: EnvConfig, watch, most_rounds: int = 20_000) -> State:
    """As `run`, round by round: `watch(before, action, after, reward)` sees each of them."""
    params = case.params
    state = jit_start(config)(params, case.table)
    policy, step = jit_policy(spec), jit_transition(config)
    key = jax.random.key(0)
    done = bool(is_finished(state))
    for index in range(most_rounds):
        if done:
            return state
        action = policy(jax.random.fold_in(key, index), mask_unknown(config, params, state), params)
        before = state
        state, gain, done = step(params, state, action)
        watch(before, action, state, gain)
    raise AssertionError(f"not finished after {most_rounds} rounds: clock {state.clock}, queue {state.queue}")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of the jobs, in the terms of `oracle.Result`."""

    start_s: np.ndarray  # float64[J], nan if never started
    finish_s: np.ndarray  # float64[J]
    status: list[str]
    partition: np.ndarray
    workers: list[dict[int, int]]
    ps: list[dict[int, int]]


def outcome(case: Case, state: State) -> Outcome:
    """Read the records of a finished run."""
    count = len(case.jobs)
    records = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], state.records)
    rejected = (np.asarray(state.jobs.home)[:count] < 0) & (np.arange(count) < int(state.next_job))
    never = records.start < 0
    undone = records.finish < 0

    def counts(rows) -> list[dict[int, int]]:
        return [{int(a): int(row[a]) for a in np.flatnonzero(row)} for row in rows]

    return Outcome(
        start_s=np.where(never, np.nan, records.start * case.interval_s),
        finish_s=np.where(undone, np.nan, records.finish * case.interval_s + records.finish_offset_s.astype(float)),
        status=["rejected" if bad else STATUS[x] for x, bad in zip(records.status, rejected, strict=True)],
        partition=records.partition.astype(int),
        workers=counts(records.workers),
        ps=counts(records.ps),
    )
