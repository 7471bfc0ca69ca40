"""What a policy of the oracle did, done once more in the environment: so its rules for stops are held to the oracle."""

import numpy as np

from jaxsched.env.environment import is_finished
from jaxsched.env.state import FORWARD, PLACE, STOP, Action, EnvConfig, State, wait_action
from tests.support import strategies
from tests.support.random_cases import Case

MOST_ROUNDS = 50_000


class Recorded:
    """A policy of the oracle; `rounds` are what it has done: by boundary, by round, by scheduler."""

    def __init__(self, policy):
        """Of a function `policy(state, p)`."""
        self.policy = policy
        self.rounds: dict[int, list[dict[int, tuple]]] = {}

    def __call__(self, state, p: int) -> tuple:
        """What it does."""
        here = self.rounds.setdefault(state.boundary, [])
        if not here or p in here[-1]:  # who decides in a round has decided in the one before
            here.append({})
        here[-1][p] = self.policy(state, p)
        return here[-1][p]


def play_again(case: Case, config: EnvConfig, rounds: dict[int, list[dict[int, tuple]]]) -> State:
    """The state when all jobs of `case` are done, if schedulers act as `Recorded` says and wait elsewhere."""
    step = strategies.jit_transition(config)
    state = strategies.jit_start(config)(case.params, case.table, case.pairs)
    for _ in range(MOST_ROUNDS):
        if bool(is_finished(state)):
            return state
        here, number = rounds.get(int(state.clock), []), int(state.round)
        action = _action_of(case, state, here[number] if number < len(here) else {})
        state, *_ = step(case.params, state, action)
    raise AssertionError(f"not finished after {MOST_ROUNDS} rounds: clock {state.clock}, queue {state.queue}")


def _action_of(case: Case, state: State, acts: dict[int, tuple]) -> Action:
    """The environment's action: jobs are named by their rows there, by slots here."""
    idle = wait_action(case.cluster)
    kind, slot, target = (np.array(leaf) for leaf in (idle.kind, idle.slot, idle.target))
    workers, ps = (np.zeros((len(kind), case.cluster.group_gpus[0].size), np.int32) for _ in range(2))
    queue, running = np.asarray(state.queue), np.asarray(state.running.job)
    stop, gpu = np.zeros(running.shape, bool), np.full(len(kind), -1, np.int32)
    for p, act in acts.items():
        if act[0] == "stop":
            kind[p], stop[p] = STOP, np.isin(running[p], act[1])
        elif act[0] != "wait":
            (slot[p],) = np.flatnonzero(queue[p] == act[1])
            kind[p] = FORWARD if act[0] == "forward" else PLACE
        if act[0] == "forward":
            target[p] = act[2]
        if act[0] == "place":
            for counts, given in ((workers, act[2]), (ps, act[3])):
                for group, count in given.items():
                    counts[p, group] = count
            gpu[p] = act[4] if len(act) > 4 and act[4] is not None else -1
    shape = case.cluster.group_gpus.shape
    return Action(
        kind=kind,
        slot=slot,
        workers=workers.reshape(shape),
        ps=ps.reshape(shape),
        target=target,
        stop=stop if case.preemption is not None else None,
        gpu=gpu if case.config().shared_gpus else None,
    )
