"""The switches of an ablation: each changes what it is named for, and nothing else."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.knowledge import HISTORY
from jaxsched.learning.chunk import chunk, initial
from jaxsched.learning.draws import draw_worlds
from jaxsched.learning.options import RewardConfig
from jaxsched.learning.rollout import look, potential
from jaxsched.learning.setting import make_setting
from jaxsched.sweeps.plan import load_sweep, replace_values

ROOT = Path(__file__).parents[2]
UP = {"group_to_server", "server_to_rack", "rack_to_scheduler"}
DOWN = {"scheduler_to_rack", "rack_to_server", "server_to_group"}
NETWORK = {  # switch: its value, and the parameters that are gone
    "network.hierarchy": (False, {f"encoder/{name}" for name in UP | DOWN}),
    "network.exchange_rounds": (0, {"encoder/exchange_0"}),
    "network.prior": (False, {"belief"}),
    "network.may_wait": (False, set()),
}


def parameters(config) -> dict[str, tuple]:
    """Shapes by `head` or `encoder/part`."""
    setting = make_setting(config)
    params = jax.eval_shape(lambda: initial(setting)).weights["params"]
    parts = {name: part for name, part in params.items() if name != "encoder"}
    parts |= {f"encoder/{name}": part for name, part in params["encoder"].items()}
    return {name: jax.tree.map(lambda leaf: leaf.shape, part) for name, part in parts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORK)
def test_a_part_of_the_network_is_left_out_and_the_others_stay(config, name):
    value, gone = NETWORK[name]
    whole, without = parameters(config), parameters(replace_values(config, {name: value}))
    assert set(whole) - set(without) == gone
    assert all(without[part] == whole[part] for part in without)


def test_no_forwarding_is_in_the_parameters_and_nowhere_else(config):
    whole, without = (make_setting(replace_values(config, {"env.max_forwards": most})) for most in (2, 0))
    assert int(whole.worlds.params.max_forwards) == 2 and int(without.worlds.params.max_forwards) == 0
    same = without.worlds.params.replace(max_forwards=whole.worlds.params.max_forwards)
    jax.tree.map(np.testing.assert_array_equal, same, whole.worlds.params)
    assert whole.static == without.static and whole.network == without.network


def test_no_interference_in_the_reward_is_in_its_weights_and_nowhere_else(config):
    whole, without = (make_setting(replace_values(config, {"reward.interference": some})) for some in (True, False))
    rewards = [setting.worlds.params.reward for setting in (whole, without)]
    assert bool(rewards[0].interference) and not bool(rewards[1].interference)
    jax.tree.map(np.testing.assert_array_equal, rewards[1].replace(interference=jnp.bool_(True)), rewards[0])
    same = without.worlds.params.replace(reward=rewards[0])
    jax.tree.map(np.testing.assert_array_equal, same, whole.worlds.params)


def test_what_schedulers_know_and_that_jobs_stop_are_in_the_environment(config):
    told = {"env.knows": HISTORY, "env.preemption": True, "env.restart_s": 30.0}
    setting = make_setting(replace_values(config, told))
    costs = setting.worlds.params.preemption
    assert setting.static.knows == HISTORY and costs is not None and float(costs.restart_s) == 30.0
    start = jax.eval_shape(lambda: initial(setting))
    assert start.worlds.history.there and start.worlds.service.there
    after, _ = jax.eval_shape(lambda state: chunk(setting, state), start)  # the whole of a chunk can be traced
    assert jax.tree.structure(after) == jax.tree.structure(start)


@pytest.mark.slow
def test_schedulers_that_know_finished_jobs_only_see_no_other_run_times(config):
    """Where no job has finished, twice the run times look the same."""
    setting = make_setting(replace_values(config, {"env.knows": HISTORY}))
    state, _ = jax.jit(lambda key: draw_worlds(key, setting.worlds, 1))(jax.random.key(1))
    state = jax.tree.map(lambda leaf: leaf[0], state)
    state = state.replace(queue=state.queue.at[:, 0].set(jnp.arange(2)))
    jobs = state.jobs.replace(duration_s=state.jobs.duration_s * 2, estimate_s=state.jobs.estimate_s * 2)
    see = jax.jit(lambda state: look(setting.rollout, setting.worlds.params, state)[0])
    jax.tree.map(np.testing.assert_array_equal, see(state), see(state.replace(jobs=jobs)))


def test_the_potential_is_late_work_and_waiting_or_waiting_or_nothing(setting, played):
    worlds, rule = played[0], RewardConfig()
    late_rule, off = dataclasses.replace(rule, potential_waiting=0.0), dataclasses.replace(rule, potential=0.0)
    no_interference = dataclasses.replace(rule, interference=False)

    def phi(rule):
        params = setting.worlds.params
        return np.asarray(jax.vmap(lambda state: potential(rule, params, state, jnp.bool_(False)))(worlds))

    late, waiting = phi(late_rule), phi(no_interference)
    assert (late < 0).any() and (waiting < 0).any()
    np.testing.assert_allclose(phi(rule), late + waiting, rtol=1e-5, atol=1e-6)
    assert not phi(dataclasses.replace(late_rule, interference=False)).any() and not phi(off).any()


@pytest.mark.parametrize("name", ["ablations", "single", "single_256", "unseen_models"])
def test_the_sweeps_of_the_project_change_one_thing_each(name):
    """The single scheduler has as many turns per boundary, as much room and as many steps of learning as all others.

    It uses more of its turns, and may have fewer of them per chunk for that.
    """
    plan = load_sweep(ROOT / "configs" / "sweeps" / f"{name}.yaml")
    assert len({point.config.seed for point in plan.points}) >= 5
    by_variant = {point.variant: point.config for point in plan.points if point.config.seed == 0}
    for config in by_variant.values():
        make_setting(config)
    first = next(iter(by_variant.values()))
    for variant, config in by_variant.items():
        if config.env.schedulers == 1:
            count = first.env.schedulers
            share = {f"env.{name}": getattr(config.env, name) for name in ("rounds", "running_slots", "queue_slots")}
            given = {"env.schedulers": count, "ppo.steps": first.ppo.steps}
            alike = replace_values(config, {key: value // count for key, value in share.items()} | given)
            assert config.ppo.steps <= count * first.ppo.steps
            assert alike == first, variant
    assert len(set(by_variant.values())) == len(by_variant) > 1
