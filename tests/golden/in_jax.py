"""Golden runs of the JAX environment.

The policies of a group are branches of one function, so that a group and world are one compiled program. What
only the event loop plays is not among them.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import adapter, digests
from .loop import Keep
from .worlds import SHARED, WORLDS, cluster_of, jobs_of

LISTS = 2
STOPPER = "stopper"  # a rule, and now and then it stops a job, if that is legal or not
ALONE = "alone"  # each with its own program, asked when it wants to be


@dataclasses.dataclass(frozen=True)
class Group:
    """Policies that are compiled together, and the worlds in which they play."""

    worlds: tuple[str, ...]
    policies: tuple[str, ...]


GROUPS = {
    "rules": Group(
        ("plain", "estimates"),
        (
            "first-fit",
            "first-fit:sjf+backfill",
            "pack",
            "pack:area+backfill+forward",
            "load-balance:tenants+backfill",
            "load-balance:area+forward",
            "tetris:sjf+spread",
            "tetris:fifo+backfill+spread+reserve",
            "least-interference",
            "least-interference:tenants+backfill+forward",
            "contention-aware:sjf+backfill+spread+reserve",
            "pack:sjf+backfill+consolidate+spread",
            "random",
        ),
    ),
    "rules-elsewhere": Group(
        ("forwards", "wrong-estimates", "failures", "failures-stops", "shared"),
        (
            "first-fit:sjf+backfill+spread",
            "pack:fifo+forward",
            "tetris:area+backfill+spread+reserve",
            "contention-aware:sjf+backfill+spread",
            "load-balance:tenants+backfill+consolidate",
            "random:spread",
        ),
    ),
    "networks": Group(
        ("torus2d", "dragonfly", "rail"),
        (
            "pack:sjf+backfill+spread",
            "least-interference:area+backfill",
            "contention-aware",
            "greedy-wait:sjf+spread+p1",
        ),
    ),
    "waiting": Group(
        ("plain", "wrong-estimates", "failures", "shared", "pairs"),
        (
            "greedy-wait:p1",
            "greedy-wait:sjf+spread+lifetime+reserve+p1",
            "greedy-wait:tenants+stay+t1.2+p0.5",
            "match",
            "match:area+spread+lifetime+t1.3",
        ),
    ),
    "observing": Group(
        ("pairs", "known-pairs"),
        ("greedy-wait:sjf+t2+observe", "match:sjf+spread+lifetime+observe", "match:area+reserve+observe"),
    ),
    "stopping": Group(
        ("stops", "free-stops", "failures-stops", "history", "shared-stops"),
        (f"{STOPPER}:pack:backfill", f"{STOPPER}:load-balance:tenants+backfill+spread"),
    ),
    "alone": Group(("plain",), ("pack", "pack:sjf+backfill+reserve+spread", "greedy-wait:p1", "match:sjf+spread")),
    "learned": Group(("plain", "wrong-estimates", "stops", "failures"), ("quickstart",)),
    "historic": Group(("history",), ("pack:area+backfill",)),
}


def parts() -> list[str]:
    """Groups in their worlds."""
    return [f"{name}@{world}" for name, group in GROUPS.items() for world in group.worlds]


def play(part: str, keep: Keep | None = None) -> dict[str, str]:
    """The digests of a group's runs in a world, by policy and job list."""
    name, _, place = part.partition("@")
    world, group, found = (WORLDS | SHARED)[place], GROUPS[name], {}
    lists = [jobs_of(world, number) for number in range(LISTS)]
    settings = world.all_settings(engine="jax", batched=False, wall_limit_s=None)
    alone = name.startswith(ALONE) or name == "learned"
    policies = [adapter.parse(spec) for spec in group.policies] if alone else together(group.policies)
    for spec, outcomes in adapter.simulate(policies, cluster_of(world.cluster), lists, settings).items():
        for number, outcome in enumerate(outcomes):
            assert outcome.stats.engine == "jax"
            arrays = digests.arrays_of(outcome)
            found[f"{spec}#{number}"] = digests.digest(arrays)
            if keep is not None:
                keep(f"{part}/{spec}#{number}", arrays)
    return found


def together(specs: tuple[str, ...]) -> list[Any]:
    """Policies that differ in their weights alone: a number, which says whose turn it is."""
    act = functools.partial(_one_of, tuple(map(_act, specs)))
    return [adapter.Policy(spec, act, np.int32(number)) for number, spec in enumerate(specs)]


def _one_of(acts: tuple[Any, ...], key: Any, state: Any, params: Any, number: Any) -> Any:
    actions = jax.eval_shape(lambda: [act(key, state, params) for act in acts])
    stops, names = (any(getattr(one, field) is not None for one in actions) for field in ("stop", "gpu"))

    def full(act: Any, *seen: Any) -> Any:
        action = act(*seen)
        if stops and action.stop is None:
            action = action.replace(stop=jnp.zeros(adapter.running_rows(state).shape, bool))
        if names and action.gpu is None:
            action = action.replace(gpu=jnp.full(len(action.kind), -1))
        return action

    return jax.lax.switch(number, [functools.partial(full, act) for act in acts], key, state, params)


def _act(spec: str) -> Any:
    """Of a name, without weights."""
    if spec.startswith(STOPPER):
        base = _act(spec.partition(":")[2])
        return lambda key, state, params: _stopping(base(key, state, params), key, state)
    act, weights = adapter.act_of(spec), adapter.parse(spec).weights
    return lambda key, state, params: act(key, state, params, weights)


def _stopping(action: Any, key: Any, state: Any) -> Any:
    """The action with a stop of each running job with a probability of a hundredth."""
    rows = adapter.running_rows(state)
    return adapter.with_stops(action, state, jax.random.bernoulli(jax.random.fold_in(key, 7), 0.01, rows.shape))
