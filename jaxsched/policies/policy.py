"""`Policy`: a name and what it does, which is data (`PolicySpec`) or a JAX function, never both."""

import dataclasses
import functools

from jaxtyping import PRNGKeyArray, PyTree

from jaxsched.border import checked
from jaxsched.env.knowledge import NOTHING
from jaxsched.env.state import ALWAYS, Action, Asked, EnvParams, State
from jaxsched.errors import UserError
from jaxsched.policies.base import Act, Judge
from jaxsched.policies.heuristics import make_heuristic, make_waiting
from jaxsched.policies.spec import WAITING, PolicySpec
from jaxsched.user_code import call, is_ours, name_of


@checked
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
    judge: Judge | None = None  # of a learned function: how sure it is

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
        return make_act(self.act) if isinstance(self.act, PolicySpec) else told(self.act)

    @property
    def asks_at(self) -> Asked:
        """The boundaries at which it must be asked, if others may be skipped: of a function by default all."""
        if self.asked is not None or self.spec is None:
            return ALWAYS if self.asked is None else self.asked
        return self.spec.asked

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
def make_act(of: PolicySpec) -> Act:
    """The JAX function that does what a hand-written policy says; the same one for the same policy.

    Raises:
        UserError: only the event loop plays it, see `PolicySpec.beyond_jax`.
    """
    if of.beyond_jax is not None:
        raise UserError(f"policy: {of.beyond_jax} is for the event loop only, JAX does not have it")
    return make_waiting(of) if of.rule in WAITING else make_heuristic(of.rule, of.queue, of.forward)


@functools.lru_cache(maxsize=256)
def told(act: Act, who: str = "") -> Act:
    """`act`, whose mistakes, if it is a user's, are told in one line; the same function for the same one.

    Args: `who`: what the line begins with, if not with the function's name.
    """
    if is_ours(act):
        return act
    who = who or f"policy function {name_of(act)}"

    def call_it(key: PRNGKeyArray, state: State, params: EnvParams, weights: PyTree) -> Action:
        action = call(who, act, key, state, params, weights)
        if not isinstance(action, Action):
            raise UserError(f"{who}: returned {type(action).__name__}, should be an Action of all schedulers")
        return action

    return call_it
