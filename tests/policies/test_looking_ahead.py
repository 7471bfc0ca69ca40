"""Before it is trained, the network that looks ahead is `greedy-wait`: turn by turn, in random worlds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxsched.env.observation import observe
from jaxsched.env.stages import transition
from jaxsched.env.state import FORWARD, PLACE, WAIT
from jaxsched.networks.hierarchy import SchedulerNetwork
from jaxsched.policies.learned import learned_policy
from jaxsched.policies.menu import build_menu
from jaxsched.policies.registry import parse
from tests.support import strategies

RULE = parse("greedy-wait")
QUEUE = dataclasses.replace(RULE.act.queue)
NET = SchedulerNetwork(width=8, looks_ahead=True)
SHAPE = strategies.SHAPES["three"]
CONFIG, TURNS = SHAPE.config(), 200


@functools.cache
def both():
    """Compiled: how many turns of a case had something to decide, and in how many the two did not do the same."""

    def weights(params, state):
        obs = observe(QUEUE, params, state, weighs=True)
        return NET.init(jax.random.key(0), obs, build_menu(params, state, obs, True, QUEUE))

    def turns(params, start):
        soft = learned_policy("untrained", NET, weights(params, start), QUEUE)

        def turn(state, _):
            one, other = (policy(jax.random.key(0), state, params) for policy in (RULE, soft))
            placed = (one.workers == other.workers).all((1, 2)) & (one.ps == other.ps).all((1, 2))
            same = (one.kind == other.kind) & ((one.kind == WAIT) | (one.slot == other.slot))
            same &= (one.kind != PLACE) | placed & (one.overtaken.cost_s == other.overtaken.cost_s)
            same &= (one.kind != FORWARD) | (one.target == other.target)
            acts = ~state.waited & ((one.kind != WAIT) | (other.kind != WAIT))
            after, _ = transition(CONFIG, params, state, one)
            return after, jnp.stack([acts.sum(), (acts & ~same).sum(), (acts & (one.kind == FORWARD)).sum()])

        return lax.scan(turn, start, length=TURNS)[1]

    return jax.jit(turns)


def check(seeds, **fixed) -> np.ndarray:
    total = np.zeros(3, int)
    for seed in seeds:
        case = strategies.random_case(seed, "three", **fixed)
        found = np.asarray(both()(case.params, strategies.jit_start(CONFIG)(case.params, case.table)))
        wrong = np.flatnonzero(found[:, 1])
        assert not wrong.size, f"case {seed}: first in turn {wrong[0]}, in {len(wrong)} of {found[:, 0].sum()}"
        total += found.sum(0)
    return total


@pytest.mark.slower
def test_untrained_it_does_what_greedy_wait_does():
    acts, _, forwards = check(range(4))
    assert acts > 40 and forwards > 0


@pytest.mark.long
def test_untrained_it_does_what_greedy_wait_does_in_many_worlds():
    acts, _, forwards = check(range(10, 60))
    assert acts > 1000 and forwards > 50
