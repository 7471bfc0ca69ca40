"""Random cases of the event loop in which a world has something more, and runs of them that equal the oracle's."""

import dataclasses
from collections.abc import Callable

from hypothesis import strategies as st

from jaxsched.env.knowledge import HISTORY
from jaxsched.event_loop import Run
from tests.simulation.test_compiled_oracle import (
    COSTS,
    LOOKING,
    MATCHING,
    PREEMPTIVE,
    SEEKING,
    SPECS,
    as_the_oracle,
    played,
)
from tests.support import strategies

EVERY = SPECS | LOOKING | MATCHING | SEEKING | PREEMPTIVE


def drawn(
    data: st.DataObject,
    shape: str,
    make: Callable[[strategies.Case, int, float], strategies.Case],
    shares: tuple[float, ...],
    specs: st.SearchStrategy[str] = EVERY,
) -> tuple[strategies.Case, str]:
    """A case that `make` has given more, to a share of its jobs, and a policy; what stopping costs if it stops jobs."""
    case, seed = data.draw(strategies.cases(shape)), data.draw(st.integers(0, 2**32 - 1))
    case, spec = make(case, seed, data.draw(st.sampled_from(shares))), data.draw(specs)
    if "preempt" in spec:
        case = dataclasses.replace(case, preemption=data.draw(COSTS))
    return dataclasses.replace(case, history=data.draw(st.booleans())), spec


def run_as_the_oracle(case: strategies.Case, spec: str, *, in_python: bool) -> tuple[strategies.Case, Run]:
    """The case as it was played, and the loop's run, which is the oracle's."""
    policy = strategies.policy_of(spec)
    case = dataclasses.replace(case, history=case.history or policy.requires == HISTORY)
    run = played(case, policy, 10_000, in_python=in_python)
    as_the_oracle(case, policy, run)
    return case, run
