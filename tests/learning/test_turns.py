"""Training in turns, as on an accelerator: the same decisions, with the same worth, as in rounds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.stages import Playing
from jaxsched.learning import rollout
from jaxsched.learning.chunk import chunk, initial, validate
from jaxsched.learning.config import MachineConfig
from jaxsched.learning.setting import make_setting, trace_for_path
from tests.learning.conftest import CONFIG, ENVIRONMENTS

pytestmark = pytest.mark.long
TURNS, ROUNDS = 40, 41  # there are no fewer turns than rounds


def in_path(path: str, **ppo):
    """The toy configuration's setting for this path, with what compiles sooner: one cluster, the flat network."""
    config = dataclasses.replace(
        CONFIG,
        machine=MachineConfig(path=path),
        ppo=dataclasses.replace(CONFIG.ppo, **ppo),
        env=dataclasses.replace(CONFIG.env, more_clusters=()),
        network=dataclasses.replace(CONFIG.network, kind="flat"),
    )
    return make_setting(config)


@pytest.fixture(scope="module")
def setting():
    return in_path("accelerator", steps=TURNS)


@pytest.fixture(scope="module")
def both(setting):
    """Experience and bootstrap of turns, and of rounds, from the same start with the same choices."""
    draws, patch = rollout.sample, pytest.MonkeyPatch()
    patch.setattr(rollout, "sample", lambda key, *rest: draws(jax.random.key(5), *rest))
    found = []
    for one in (setting, in_path("cpu", steps=ROUNDS)):

        @trace_for_path
        def play(setting):
            state = initial(setting)
            return rollout.collect(jax.random.key(0), setting.rollout, state.weights, state.draws, state.worlds)

        _, experience, bootstrap, counts = jax.jit(lambda one=one: play(one))()
        found.append((experience, bootstrap, counts))
    patch.undo()
    return found


def test_the_same_decisions_with_the_same_advantages(both):
    (turns, value_after, _), (rounds, _, _) = both
    decides, followed = np.asarray(turns.decides), 0
    known, _ = rollout.advantages(turns, value_after, jnp.float32(1.0), 0.9)
    for env in range(ENVIRONMENTS):
        places = np.flatnonzero(decides[:, env])
        count = len(places)
        assert 4 < count < TURNS and rounds.decides[:count, env].all()
        for name in ("value", "real", "log_prob"):
            one, other = (np.asarray(getattr(kind, name))[:, env] for kind in (turns, rounds))
            np.testing.assert_allclose(one[places], other[:count], rtol=1e-4, atol=1e-4, err_msg=name)
        for one, other in zip(jax.tree.leaves(turns.choice), jax.tree.leaves(rounds.choice), strict=True):
            np.testing.assert_array_equal(one[places, env], other[:count, env])
        first = jax.tree.map(lambda leaf, env=env, count=count: leaf[:count, env : env + 1], rounds)
        after = rounds.value[count, env][None]
        np.testing.assert_allclose(value_after[env], after[0], rtol=1e-4, atol=1e-4)
        expected, _ = rollout.advantages(first, after, jnp.float32(1.0), 0.9)
        np.testing.assert_allclose(known[places, env], expected[:, 0], rtol=2e-4, atol=2e-4)
        followed += int((first.discount < 1.0).sum())
    assert followed > 8  # the clock went on in between


def test_nothing_is_learned_from_what_is_not_over(both):
    (turns, _, counts), (rounds, _, _) = both
    assert not (turns.real & ~turns.decides[..., None]).any()
    assert (np.asarray(turns.decides).sum(0) < TURNS).all() and bool(rounds.decides.all())
    assert 0 <= int(counts.rounds) - int(turns.decides.sum()) <= ENVIRONMENTS


@pytest.fixture(scope="module")
def step(setting):
    return jax.jit(lambda state: chunk(setting, state))


def test_chunks_in_turns_learn_and_go_on(setting, step):
    state = jax.jit(lambda: initial(setting))()
    assert isinstance(state.worlds, Playing)
    decisions = 0
    for _ in range(3):
        before, (state, metrics) = state, step(state)
        assert all(np.isfinite(value) for value in metrics.values()) and int(metrics["illegal"]) == 0
        assert any((a != b).any() for a, b in zip(*map(jax.tree.leaves, (before.weights, state.weights)), strict=True))
        decisions += int(metrics["decisions"])
    assert decisions > 20 and int(state.chunk) == 3


def test_validation_in_turns_is_that_in_rounds(setting):
    weights = jax.jit(lambda: initial(setting))().weights
    in_turns, in_rounds = (
        float(jax.jit(lambda weights, one=one: validate(one, weights))(weights)) for one in (setting, in_path("cpu"))
    )
    assert in_turns == pytest.approx(in_rounds, rel=1e-5)
