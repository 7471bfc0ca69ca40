"""What the network does before it is trained, and what it does whatever its weights."""

import jax
import jax.numpy as jnp

from jaxsched.networks.hierarchy import BELIEF, SchedulerNetwork
from tests.support.network_cases import NET, SIZE, apply, assert_same, jit_apply, make, weights_of


def test_prior_prefers_what_greedy_wait_would_choose_early_jobs_and_acting_on_good_offers():
    obs, menu = make()
    weights = jax.jit(NET.init)(jax.random.key(0), obs, menu)
    flat = menu.replace(order=jnp.zeros_like(menu.order), log_stake=jnp.full_like(menu.log_stake, -1.0))
    for lower in ("order", "log_stake"):
        dearer = flat.replace(**{lower: jnp.full_like(getattr(menu, lower), 20)})
        best = dearer.replace(**{lower: getattr(dearer, lower).at[:, 1 * SIZE[5] + 2].set(0)})
        assert (jit_apply(NET)(weights, obs, best).place.argmax(-1) == 1 * SIZE[5] + 2).all()
    heads = jit_apply(NET)(weights, obs, flat)
    assert (heads.place[:, : SIZE[5]].min(-1) > heads.place[:, SIZE[5] :].max(-1)).all()
    dear = flat.replace(log_stake=jnp.full_like(menu.log_stake, 1.0))
    nowhere = obs.replace(forward_mask=jnp.zeros_like(obs.forward_mask))
    assert (heads.act > 0).all() and (jit_apply(NET)(weights, nowhere, dear).act < 0).all()
    # nothing good to place: act, if a forward can happen
    somewhere = obs.forward_mask.any(-1)
    assert somewhere.any()
    for poor in (dear, flat.replace(mask=jnp.zeros_like(menu.mask))):
        assert (jit_apply(NET)(weights, obs, poor).act > 0)[somewhere].all()


def test_a_scheduler_that_gains_nothing_by_waiting_always_acts():
    """An idle partition, or an offered job that would be done before anything that runs."""
    obs, menu = make()
    dear = menu.replace(log_stake=jnp.full_like(menu.log_stake, 9.0))
    idle = obs.replace(scheduler=obs.scheduler.at[1, 0].set(1.0))
    assert (jax.nn.sigmoid(apply(idle, dear).act) == 1).tolist() == [False, True, False]
    brief = dear.replace(brief=dear.brief.at[2, SIZE[5]].set(True))
    assert (jax.nn.sigmoid(apply(obs, brief).act) == 1).tolist() == [False, False, True]
    not_offered = brief.replace(mask=brief.mask.at[2, SIZE[5]].set(False))
    assert (jax.nn.sigmoid(apply(obs, not_offered).act) < 1).all()


def test_without_waiting_the_network_always_acts():
    obs, menu = make(padded=True)
    eager = SchedulerNetwork(width=8, may_wait=False)
    weights = weights_of(NET)
    shapes = jax.eval_shape(eager.init, jax.random.key(0), obs, menu)
    assert jax.tree.structure(shapes) == jax.tree.structure(weights)  # a setting, not another network
    after = jit_apply(eager)(weights, obs, menu)
    assert (jax.nn.sigmoid(after.act) == 1).all()
    assert_same(apply(obs, menu), after, "place", "forward", "value")


def test_a_prior_of_zero_is_no_prior():
    obs, menu = make(padded=True)
    weights = weights_of(NET)
    bare = SchedulerNetwork(width=8, prior=False)
    assert "belief" in weights["params"] and "belief" not in weights_of(bare)["params"]
    silent = {"params": weights["params"] | {"belief": jnp.zeros(len(BELIEF))}}
    without = {"params": {name: leaf for name, leaf in weights["params"].items() if name != "belief"}}
    assert_same(jit_apply(NET)(silent, obs, menu), jit_apply(bare)(without, obs, menu))
