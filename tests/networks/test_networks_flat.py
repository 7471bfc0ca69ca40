"""The flat network: all that a scheduler sees as one vector."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.networks.hierarchy import SchedulerNetwork
from tests.support.network_cases import SIZE, SIZES, jit_apply, make


@functools.cache
def flat_weights(network: SchedulerNetwork):
    """Those of `weights_of`, in the shapes of `SIZE`."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(network.init, jax.random.key(0), *make())
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 3, leaf.dtype), shapes)


def test_the_flat_network_differs_in_the_encoder_only_whose_shapes_are_those_of_the_cluster():
    graph, flat = (jax.eval_shape(SchedulerNetwork(width=8, kind=kind).init, jax.random.key(0), *make())["params"]
                   for kind in ("graph", "flat"))  # fmt: skip
    assert {name for name in graph if name != "encoder"} == {name for name in flat if name != "encoder"}
    assert all(graph[name] == flat[name] for name in graph if name != "encoder")
    other = jax.eval_shape(SchedulerNetwork(width=8, kind="flat").init, jax.random.key(0), *make(SIZES[2]))
    assert other["params"]["encoder"] != flat["encoder"]
    heads = jit_apply(SchedulerNetwork(width=8, kind="flat"))(
        flat_weights(SchedulerNetwork(width=8, kind="flat")), *make()
    )
    assert heads.place.shape == (3, SIZE[4] * SIZE[5]) and heads.value.shape == (3,)


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_flat_scheduler_sees_its_own_arrays_and_with_exchange_the_pooled_views_of_others(rounds):
    network = SchedulerNetwork(width=8, kind="flat", exchange_rounds=rounds)
    obs, menu = make()
    before = jit_apply(network)(flat_weights(network), obs, menu)
    for name in ("group", "server", "rack", "scheduler", "job"):
        after = jit_apply(network)(
            flat_weights(network), obs.replace(**{name: getattr(obs, name).at[1].add(1.0)}), menu
        )
        assert float(before.value[1]) != float(after.value[1])
        heard = bool((before.value[0] != after.value[0]) or (before.value[2] != after.value[2]))
        assert heard == (rounds == 1 and name == "scheduler"), name
