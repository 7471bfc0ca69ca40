"""What the event loop can play. Nothing here imports Numba."""

import dataclasses
import functools
import importlib.metadata

from jaxsched.dynamics import interference
from jaxsched.env import levels
from jaxsched.env.knowledge import HISTORY
from jaxsched.env.queues import Discipline
from jaxsched.env.state import EnvConfig, EnvParams
from jaxsched.policies.policy import Policy
from jaxsched.policies.spec import WAITING

POLICIES = ("first-fit", "pack", "load-balance", "tetris", "least-interference", "contention-aware", *WAITING)
# Queue orders that it has keys or levels of. A new name is refused until it has, and then stands here.
ORDERS = ("fifo", "sjf", "area", "tenants", *levels.ORDERS)
# Of a discipline.
QUEUE = ("order", "backfill", "reserve", "window", "consolidate", "racks", "preempt", "faster", "hysteresis", "quantum")
OLDEST_NUMBA = (0, 68)
LAWS = (interference.none, interference.analytic, interference.fitted)


def why_not(policy: Policy, config: EnvConfig, params: EnvParams, *, compiled: bool = True) -> str | None:
    """What is missing to play a policy; None if nothing is.

    Args:
        policy: By name or options; searching policies are for whole runs, see `why_not_whole_run`.
        config: Of the world, as `env.environment.initial_state` takes it.
        params: Likewise.
        compiled: As machine code, which needs Numba; else as plain Python.
    """
    return _not_covered(policy, config, params) or (numba_missing() if compiled else None)


def why_not_whole_run(policy: Policy, config: EnvConfig, params: EnvParams) -> str | None:
    """As `why_not`, for a run from an empty cluster to the end: there a policy may search, as machine code."""
    if not policy.searches:
        return why_not(policy, config, params)
    if config.knows == HISTORY:
        return "it searches by estimates that stay as they are, not by those of the history"
    if params.failures.there:
        return "it does not search where servers fail"
    if config.shared_gpus:
        return "it does not search where jobs share GPUs"
    return why_not(rule_of(policy), config, params)


def _not_covered(policy: Policy, config: EnvConfig, params: EnvParams) -> str | None:
    if policy.spec is None or policy.spec.rule not in POLICIES:
        return f"it has the policies {', '.join(POLICIES)} only"
    if policy.searches:
        return "it searches in whole runs only"
    queue = policy.spec.queue
    if not isinstance(queue.order, levels.LevelTable) and queue.order not in ORDERS:
        return f"it has the queue orders {', '.join(ORDERS)} only"
    beyond = [field for field in dataclasses.fields(Discipline) if field.name not in QUEUE]
    asked = [field.name for field in beyond if getattr(queue, field.name) != field.default]
    if asked:
        return f"it has no queues with {', '.join(asked)}"
    if params.interference.law not in LAWS:
        return "it has no interference models but the project's own"
    return None


def is_simple(policy: Policy) -> bool:
    """Whether it does not look ahead, seek, stop jobs, keep racks or observe: its machine code is smaller."""
    of = policy.spec
    if of is None or of.search or of.seek is not None:
        return False
    return of.rule not in WAITING and not (of.queue.preempt or of.queue.racks or of.queue.faster or of.observe)


def rule_of(policy: Policy) -> Policy:
    """The rule under which a policy searches: that it follows between its searches."""
    assert policy.spec is not None
    return dataclasses.replace(policy, act=dataclasses.replace(policy.spec, search=0))


@functools.cache
def numba_missing() -> str | None:
    """Why Numba cannot be used; None if it can. It is not imported: that takes half a second."""
    try:
        version = importlib.metadata.version("numba")
    except importlib.metadata.PackageNotFoundError:
        return "it needs Numba, `pip install 'jaxsched[compiled]'`"
    oldest = ".".join(map(str, OLDEST_NUMBA))
    if tuple(map(int, version.split(".")[:2])) < OLDEST_NUMBA:
        return f"it needs Numba {oldest} or newer, {version} is installed"
    return None


def describe_compiling(*, simple: bool = False) -> str | None:
    """What has to be compiled before a run as machine code, and how long that takes; None if it is there."""
    from jaxsched.event_loop._kernel.machine_code import (  # half a second, for Numba
        COMPILE_S,
        SIMPLE_COMPILE_S,
        is_kept,
    )

    if is_kept("play") or (simple and is_kept("play", simple=True)):
        return None
    seconds = SIMPLE_COMPILE_S if simple else COMPILE_S
    return f"the event loop, about {seconds} s (once: it is kept for the next time)"
