"""Who takes part in a comparison: hand-written policies by name, checkpoints by folder, a caller's own."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import chex

from jaxsched.env.state import EnvConfig
from jaxsched.errors import UserError
from jaxsched.policies.base import Policy
from jaxsched.policies.registry import NAMES, Spec, hand_written, parse


@dataclasses.dataclass(frozen=True)
class Contender:
    """A policy that can be made for any size of the environment's tables."""

    name: str
    make: Callable[..., Policy]  # of an EnvConfig and, where there are `weights`, other weights in their place
    baseline: bool  # hand-written: one of those that `ratio_to_best_baseline` compares with
    spec: Spec | None = None  # what its name says, of one that is hand-written
    weights: chex.ArrayTree = None  # arguments of the compiled program: checkpoints of one network share its cache

    def policy(self, config: EnvConfig, weights: chex.ArrayTree) -> Policy:
        """The policy, with `weights` in place of its own if it has any."""
        return self.make(config) if self.weights is None else self.make(config, weights)


def contender(spec: str | Contender) -> Contender:
    """The contender of a policy's name or of a checkpoint's folder. UserError if `spec` is neither."""
    if isinstance(spec, Contender):
        return spec
    if spec.partition(":")[0] not in NAMES:
        if Path(spec).is_dir():
            from jaxsched.policies.checkpoint import load_checkpoint  # the others need no neural network library

            found = load_checkpoint(spec)
            return Contender(spec, found.policy, baseline=False, weights=found.weights)
        if "/" in spec:
            raise UserError(
                f"policy {spec!r}: no such folder; give the folder of a checkpoint or one of {', '.join(NAMES)}"
            )
    return Contender(spec, lambda config: hand_written(spec, config), baseline=True, spec=parse(spec))


def contenders(specs: Sequence[str | Contender]) -> list[Contender]:
    """One contender per spec, in order. UserError if there is none, or one twice."""
    found = [contender(spec) for spec in specs]
    names = [one.name for one in found]
    if not found:
        raise UserError(f"policies: none is given; name at least one of {', '.join(NAMES)}, or a checkpoint's folder")
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UserError(f"policies: {twice[0]!r} is given twice, every policy may only once")
    return found
