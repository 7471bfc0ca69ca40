"""`Policy`: a name and what it does, which is data (`PolicySpec`) or a JAX function, never both."""

import dataclasses
import functools

import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from jaxsched.env.extensions.pairs import as_seen
from jaxsched.env.knowledge import NOTHING
from jaxsched.env.queues import Discipline
from jaxsched.env.state import ALWAYS, Action, Asked, EnvParams, State
from jaxsched.errors import UserError
from jaxsched.policies.base import Act
from jaxsched.policies.faster import quiet_intervals
from jaxsched.policies.greedy_wait import greedy_wait
from jaxsched.policies.heuristics import heuristic
from jaxsched.policies.matching import match
from jaxsched.policies.seeking import seeking
from jaxsched.policies.spec import GREEDY_WAIT, WAITING, PolicySpec


@dataclasses.dataclass(frozen=True)
class Policy:
    """A named scheduler for all partitions of a cluster.

    `act` alone says what it does. It is a `PolicySpec`, data that every engine reads, or a pure function
    `(key, state, params, weights) -> Action` that is jit-able and vmap-able. Weights are its argument, so that policies
    that differ in nothing else share a compiled program.
    """

    name: str
    act: PolicySpec | Act
    weights: PyTree = None  # of a function
    asked: Asked | None = None  # the boundaries at which it must be asked, see `intervals_ahead`; None: as `act` needs
    needs: str | None = None  # what it must know of run times, one of `env.knowledge.KNOWLEDGE`; None: as `act` needs

    def __post_init__(self) -> None:
        """UserError for weights that nothing would read."""
        if self.spec is not None and self.weights is not None:
            raise UserError(f"policy {self.name!r}: weights are for functions; a hand-written policy has none")

    @property
    def spec(self) -> PolicySpec | None:
        """What it does, if that is data."""
        return self.act if isinstance(self.act, PolicySpec) else None

    @property
    def function(self) -> Act:
        """What it does, as a JAX function."""
        return act_of(self.act) if isinstance(self.act, PolicySpec) else self.act

    @property
    def asks_at(self) -> Asked:
        """The boundaries at which it must be asked, if others may be skipped: of a function by default all."""
        if self.asked is not None or self.spec is None:
            return ALWAYS if self.asked is None else self.asked
        return _quiet(self.spec.queue, self.spec.forward) if self.spec.queue.preempt else self.spec.asked

    @property
    def requires(self) -> str:
        """What it must know of run times, one of `env.knowledge.KNOWLEDGE`: of a function by default nothing."""
        if self.needs is not None or self.spec is None:
            return NOTHING if self.needs is None else self.needs
        return self.spec.needs

    @property
    def searches(self) -> bool:
        """It compares what may be done with the jobs that wait by what would become of all."""
        return self.spec is not None and self.spec.search > 0

    @property
    def is_rule(self) -> bool:
        """Written by hand: it learned nothing, learns nothing, and does not search."""
        named = self.spec is not None and isinstance(self.spec.rule, str) and not callable(self.spec.queue.order)
        return named and not self.searches and not (self.spec is not None and self.spec.learned)

    def __call__(self, key: PRNGKeyArray, state: State, params: EnvParams) -> Action:
        """What it does, with its own weights."""
        return self.function(key, state, params, self.weights)


@functools.lru_cache(maxsize=256)
def act_of(of: PolicySpec) -> Act:
    """The JAX function that does what a hand-written policy says; the same one for the same policy."""
    if of.search:
        return _refuse_to_search
    if of.rule in WAITING:  # they would rather wait than take what there is
        rule = greedy_wait if of.rule == GREEDY_WAIT else match
        act = rule(of.threshold, of.patience, of.queue, of.forward, of.lifetimes)
        act = observing(act) if of.observe else act
    else:
        act = heuristic(of.rule, of.queue, of.forward)
    if of.seek is None:
        return act
    seeks, numbers = seeking(act, of.queue), np.array(of.seek.numbers, np.float32)
    return lambda key, state, params, weights: seeks(key, state, params, numbers)


def observing(act: Act) -> Act:
    """What acts by the factors of pairs of models that have been seen, see `env.extensions.pairs`."""
    return lambda key, state, params, weights: act(key, state, as_seen(params, state), weights)


def _refuse_to_search(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
    raise UserError("policy: searches in whole runs of the compiled event loop only")


@functools.cache
def _quiet(queue: Discipline, forward: str) -> Asked:
    """One function for each discipline, so that programs that take it as an argument are compiled once."""
    return functools.partial(quiet_intervals, queue, forward)
