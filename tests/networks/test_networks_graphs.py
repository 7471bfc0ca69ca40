"""The graphs that the network passes messages over."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.networks.graphs import Talk, containment, downward, exchange, hear, upward
from jaxsched.networks.hierarchy import MessagePassing
from tests.support.network_cases import SIZES, make


def test_containment_names_every_parent():
    obs, _ = make(SIZES[2], padded=True)
    p, n, k = obs.group_mask.shape
    t = obs.rack.shape[1]
    groups, servers, racks = containment(obs)
    assert (groups.parents, servers.parents, racks.parents) == (p * n, p * t, p)
    holds = np.zeros((p, t), bool)
    for i in range(p):
        for j in range(n):
            server, rack = i * n + j, int(obs.server_rack[i, j])
            real = bool(obs.group_mask[i, j].any())
            holds[i, rack] |= real
            assert int(servers.parent[server]) == i * t + rack and float(servers.real[server]) == real
            for g in range(k):
                group = server * k + g
                assert int(groups.parent[group]) == server
                assert float(groups.real[group]) == float(obs.group_mask[i, j, g])
    np.testing.assert_array_equal(racks.parent, np.repeat(np.arange(p), t))
    np.testing.assert_array_equal(racks.real, holds.reshape(-1))


@pytest.mark.parametrize("which", range(3))
def test_a_pass_is_the_sum_of_messages_over_the_root_of_their_number(which):
    obs, _ = make(SIZES[2])
    level = containment(obs)[which]
    rng = np.random.default_rng(3)
    children = jnp.asarray(rng.normal(size=(level.parent.shape[0], 8)), jnp.float32)
    parents = jnp.asarray(rng.normal(size=(level.parents, 8)), jnp.float32)
    up, down = functools.partial(upward, level), functools.partial(downward, level)
    module = MessagePassing(8)
    weights = module.init(jax.random.key(0), up, children, parents)
    dense = weights["params"]

    def reference(child_hears: bool) -> np.ndarray:
        def message(x):
            return np.maximum(x @ np.asarray(dense["message"]["kernel"]) + np.asarray(dense["message"]["bias"]), 0)

        nodes = np.asarray(children if child_hears else parents)
        heard = np.zeros_like(nodes)
        for i in range(len(nodes)):
            if child_hears:
                senders = np.asarray(parents)[[int(level.parent[i])] if level.real[i] else []]
            else:
                senders = np.asarray(children)[(np.asarray(level.parent) == i) & (np.asarray(level.real) > 0)]
            if len(senders):
                heard[i] = message(senders).sum(0) / np.sqrt(len(senders))
        own = nodes @ np.asarray(dense["own"]["kernel"]) + np.asarray(dense["own"]["bias"])
        return nodes + np.maximum(own + heard @ np.asarray(dense["heard"]["kernel"]), 0)

    for talk, speakers, listeners in ((up, children, parents), (down, parents, children)):
        heard = np.asarray(module.apply(weights, talk, speakers, listeners))
        np.testing.assert_allclose(heard, reference(talk is down), rtol=1e-4, atol=1e-5)


def heard_edges(talk: Talk) -> set[tuple[int, int]]:
    """Sender and receiver of every edge of some weight."""
    graph = talk.graph
    weights = np.asarray(graph.edges)[:, 0]
    return {(int(s), int(r)) for s, r, w in zip(graph.senders, graph.receivers, weights, strict=True) if w > 0}


def test_the_graph_of_schedulers_is_complete_and_without_loops():
    talk = exchange(jnp.ones(4, bool), jnp.zeros((4, 8)))
    assert heard_edges(talk) == {(i, j) for i in range(4) for j in range(4) if i != j}


def test_a_scheduler_that_only_pads_is_not_heard():
    talk = exchange(jnp.array([True, True, False, True]), jnp.zeros((4, 8)))
    assert {sender for sender, _ in heard_edges(talk)} == {0, 1, 3}


def test_schedulers_of_different_environments_are_not_connected():
    talk = exchange(jnp.ones((3, 2), bool), jnp.zeros((6, 8)))
    assert heard_edges(talk) == {(0, 1), (1, 0), (2, 3), (3, 2), (4, 5), (5, 4)}


def test_schedulers_hear_the_others_of_their_environment():
    real = jnp.array([[True, True, False], [True, True, True]])
    said = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    heard = np.asarray(hear(exchange(real, jnp.asarray(said))))
    for i in range(6):
        others = [j for j in range(i // 3 * 3, i // 3 * 3 + 3) if j != i and bool(real.reshape(-1)[j])]
        np.testing.assert_allclose(heard[i], said[others].sum(0) / np.sqrt(len(others)), rtol=1e-5, atol=1e-6)
