"""The loop of decision rounds, with a state that only counts."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.env.rollout import Collector, play_rounds, play_while

ADDED = Collector(jnp.int32(0), lambda total, seen: total + seen)


def play(state, key):
    return state + 1, 10 * state


def test_a_round_per_key():
    state, total, seen = play_rounds(play, jnp.int32(3), jax.random.split(jax.random.key(0), 4), ADDED)
    assert (int(state), int(total)) == (7, 30 + 40 + 50 + 60)
    np.testing.assert_array_equal(seen, [30, 40, 50, 60])


def test_rounds_while_going_and_no_more_than_allowed():
    keys = []

    def key_of(count):
        jax.debug.callback(lambda count: keys.append(int(count)), count)
        return jax.random.key(0)

    state, total, rounds = play_while(lambda state: state < 6, play, jnp.int32(3), key_of, 100, ADDED)
    assert (int(state), int(total), int(rounds)) == (6, 120, 3)
    jax.effects_barrier()
    assert keys == [0, 1, 2]
    state, _, rounds = play_while(lambda state: state < 6, play, jnp.int32(3), lambda _: jax.random.key(0), 2, ADDED)
    assert (int(state), int(rounds)) == (5, 2)
