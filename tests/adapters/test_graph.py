"""The graph that schedulers are shown: what its nodes and edges say, and that a network of ones own reads it."""

import importlib
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsched
from jaxsched.adapters.features import EDGE, EDGES, GROUP, JOB, NODE, NODES, OPTION, PLACEMENT, RACK, SCHEDULER, SERVER
from jaxsched.errors import UserError
from jaxsched.worlds.families import Choice
from jaxsched.worlds.world import draw_world

MADE = {"schedulers": 2, "num_jobs": 20, "episodes": 2, "mean_duration_s": 900.0, "load": 1.5}


@pytest.fixture(scope="module")
def env():
    return jaxsched.make("torus2d-6", "distributed", observation="graph", **MADE)


@pytest.fixture(scope="module")
def shown(env):
    """A turn in the midst of an episode in which there is something to choose, and its graph."""
    step = jax.jit(env.step)
    seen, turn = jax.jit(env.reset)(jax.random.key(0))
    for i in range(200):
        busy = (np.asarray(turn.state.running.job) >= 0).sum() > 3
        if busy and seen["mask"][:, :-1].any() and float(seen["graph"].nodes[:, column("link.load")].max()) > 0:
            return seen, turn
        seen, turn, *_ = step(jax.random.key(i), turn, jnp.argmax(seen["mask"], -1))
    raise AssertionError("nothing to choose on a busy cluster")


def column(name: str) -> int:
    return [one.name for one in NODE].index(name)


def of_kind(graph, kind: str) -> np.ndarray:
    """The nodes of a kind."""
    return np.asarray(graph.nodes)[np.asarray(graph.nodes)[:, list(NODES).index(kind)] == 1]


def edges_of(graph, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Senders, receivers and weights of the real edges of a kind."""
    edges = np.asarray(graph.edges)
    some = (edges[:, EDGES.index(kind)] == 1) & (edges[:, -1] == 1)
    return np.asarray(graph.senders)[some], np.asarray(graph.receivers)[some], edges[some, len(EDGES)]


@pytest.mark.slow
def test_columns_are_those_of_the_arrays(env, shown):
    seen, turn = shown
    sizes = {"group": GROUP, "server": SERVER, "rack": RACK, "scheduler": SCHEDULER, "job": JOB}
    for name, columns in sizes.items():
        assert getattr(turn.observation, name).shape[-1] == len(columns), name
    assert turn.menu.features.shape[-1] == len(PLACEMENT) and seen["options"].shape[-1] == len(OPTION)
    assert seen["graph"].nodes.shape[-1] == len(NODE) == len(env.features["nodes"])
    assert seen["graph"].edges.shape[-1] == len(EDGE) == len(env.features["edges"])
    for array, columns in ((seen["graph"].nodes, NODE), (seen["graph"].edges, EDGE), (seen["options"], OPTION)):
        for place, one in enumerate(columns):
            values = np.asarray(array)[..., place]
            assert (values >= one.low - 1e-6).all() and (values <= one.high + 1e-6).all(), one


def test_every_node_is_in_its_place(shown):
    seen, turn = shown
    graph, state = seen["graph"], turn.state
    p, n, k = state.free.shape
    counts = {kind: len(of_kind(graph, kind)) for kind in NODES}
    jobs, options = turn.observation.job.shape[1], seen["mask"].shape[1]
    assert counts == {
        "job": p * jobs, "group": p * n * k, "server": p * n, "rack": turn.observation.rack.shape[1] * p,
        "link": counts["link"], "scheduler": p, "option": p * options,
    }  # fmt: skip
    assert sum(counts.values()) == graph.nodes.shape[0] == int(graph.n_node[0]) and counts["link"] > 0
    free = of_kind(graph, "group")[:, column("group.free_gpus")] * 4
    np.testing.assert_allclose(free, np.asarray(state.free).reshape(-1))
    last = np.asarray(graph.nodes)[-p * options :]
    np.testing.assert_array_equal(last, of_kind(graph, "option"))
    np.testing.assert_array_equal(last[:, len(NODES)], np.asarray(seen["mask"]).reshape(-1))
    before = np.asarray(graph.nodes)[-p * options - p : -p * options]
    np.testing.assert_array_equal(before, of_kind(graph, "scheduler"))


def test_an_option_leads_from_its_job_to_the_groups_that_it_takes(shown):
    seen, turn = shown
    graph, menu = seen["graph"], turn.menu
    first_group = int(np.flatnonzero(np.asarray(graph.nodes)[:, list(NODES).index("group")])[0])
    first_option = graph.nodes.shape[0] - seen["mask"].size
    senders, receivers, weight = edges_of(graph, "option to group")
    workers = np.asarray(menu.workers, np.float64)
    for p, place in zip(*np.nonzero(np.asarray(menu.mask))):
        mine = senders == first_option + p * seen["mask"].shape[1] + place
        groups = receivers[mine] - first_group - p * workers.shape[-1]
        np.testing.assert_array_equal(np.sort(groups), np.flatnonzero(workers[p, place]))
        assert weight[mine].sum() == pytest.approx(1.0)
    assert len(senders) == (workers[np.asarray(menu.mask)] > 0).sum()
    jobs, options, _ = edges_of(graph, "job to option")
    rows = (options - first_option) // seen["mask"].shape[1], (options - first_option) % seen["mask"].shape[1]
    placed = rows[1] < menu.mask.shape[1]
    expected = rows[0] * turn.observation.job.shape[1] + np.asarray(menu.rank)[rows[0], np.minimum(rows[1], 31)]
    np.testing.assert_array_equal(jobs[placed], expected[placed])


def test_links_have_the_load_that_flows_over_them(env, shown):
    seen, turn = shown
    cluster, graph = env.params.env.cluster, seen["graph"]
    nodes = of_kind(graph, "link")
    ids, total = np.asarray(cluster.link_id), np.asarray(turn.state.total)[:, -np.asarray(cluster.link_id).shape[1] :]
    for (p, e), number in np.ndenumerate(ids):
        if number < len(nodes):
            assert nodes[number, column("link.load")] == pytest.approx(np.log1p(total[:, :][p, e]), rel=1e-5)
    capacity = np.asarray(cluster.link_bytes_s)[:-1] / float(cluster.nic_bytes_s.max())
    np.testing.assert_allclose(nodes[:, column("link.capacity")], capacity, rtol=1e-6)
    _, links, share = edges_of(graph, "rack sends over link")
    assert len(links) and (share > 0).all()


def test_what_takes_rows_says_so(env):
    with pytest.raises(UserError, match="a graph is none"):
        env.observation_space()
    with pytest.raises(UserError, match="observation: 'grph' should be one of rows, graph"):
        jaxsched.make("leaf-spine-1", num_jobs=2, episodes=1, observation="grph")


@pytest.mark.long
def test_a_network_of_ones_own_learns_and_is_judged_beside_rules(env):
    path = Path(__file__).parents[2] / "examples/graph_network.py"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum(bool(line.strip()) for line in lines) < 60
    example = runpy.run_path(str(path))
    network = example["Network"]()
    weights = [example["train"](env, updates, jax.random.key(0), network) for updates in (0, 3)]
    before, after = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)]) for one in weights)
    assert np.isfinite(after).all() and np.abs(after - before).max() > 1e-4
    brave = jaxsched.make("torus2d-6", "distributed", observation="graph", may_wait=False, **MADE)  # as the example's
    mine = brave.policy("mine", lambda key, seen, weights: jnp.argmax(network.apply(weights, seen)[0], -1), weights[1])
    row = jaxsched.compare("leaf-spine-2", "distributed", [mine], seeds=1, schedulers=2, num_jobs=12).rows[0]
    assert row.jobs.finished == 12, "on a cluster of another size, too"


@pytest.mark.long
@pytest.mark.parametrize(("name", "observation"), [("mappo", "rows"), ("graph_ppo", "graph")])
def test_other_learners_learn_something_on_a_task(monkeypatch, name, observation):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    ppo, learner = importlib.import_module("ppo"), importlib.import_module(name)
    for constant, value in {"ENVS": 4, "STEPS": 64, "MINIBATCHES": 4}.items():
        monkeypatch.setattr(ppo, constant, value)
    env = jaxsched.make("task-tiny", num_jobs=12, episodes=2, may_wait=False, observation=observation)
    network, told = learner.Network(), []
    report = lambda number, weights, jct_s, decisions: told.append(int(decisions))
    weights = [ppo.train(env, updates, jax.random.key(0), network, 2, report)[1] for updates in (0, 2)]
    before, after = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)]) for one in weights)
    assert np.isfinite(after).all() and np.abs(after - before).max() > 1e-4
    assert len(told) == 2 and min(told) > 0
    mine = ppo.policy(env, network, weights[1], name)
    world = draw_world(Choice("task-tiny"), 0, jobs=12)
    row = jaxsched.compare(world.build(), world.jobs, [mine], models=world.catalogue).rows[0]
    assert row.name == name and row.jobs.finished == 12
