"""Clusters of different shapes in one batch: what padding leaves alone, and that padded clusters simulate the same."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxsched.cluster.build import Shape, common_shape, pad, shape_of, stack
from jaxsched.cluster.hardware import real_partitions, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.state import make_params
from jaxsched.errors import UserError
from tests.support import strategies

SPECS = (
    "pack:area+backfill+forward",
    "load-balance:tenants+backfill",
    "tetris:sjf+spread",
    "contention-aware:sjf+backfill+spread",
    "greedy-wait:p1",
)
MORE = Shape(partitions=1, servers=2, groups=1, racks=3, domains=0, links=5, hops=2, uneven=0, all_links=7)
SHAPE = strategies.SHAPES["two"]


def grown(cluster, by: Shape = MORE):
    sizes = zip(dataclasses.astuple(shape_of(cluster)), dataclasses.astuple(by), strict=True)
    return pad(cluster, Shape(*(size + extra for size, extra in sizes)))


def test_padding_keeps_what_is_there_and_adds_nothing_that_counts():
    cluster = get_cluster("fat-tree-13", 3)
    big = grown(cluster)
    p, n, k, t, _, e, h, u, links = dataclasses.astuple(shape_of(cluster))
    assert dataclasses.astuple(shape_of(big)) == (p + 1, n + 2, k + 1, t + 3, 0, e + 5, h + 2, u, links + 7)
    assert total_gpus(big) == total_gpus(cluster) == 13 * 8
    assert int(real_partitions(big)) == int(real_partitions(cluster)) == 3
    for name in (field.name for field in dataclasses.fields(cluster)):
        if name not in ("link_bytes_s", "link_id", "gpu_types", "own_speeds"):
            leaf, padded = getattr(cluster, name), getattr(big, name)
            inside = tuple(slice(0, size) for size in leaf.shape)
            np.testing.assert_array_equal(padded[inside], leaf)
            assert padded.dtype == leaf.dtype
    np.testing.assert_array_equal(big.link_bytes_s[:links], cluster.link_bytes_s[:links])
    np.testing.assert_array_equal(big.link_bytes_s[links:], 1)
    real = np.asarray(cluster.link_id) < links
    np.testing.assert_array_equal(np.asarray(big.link_id[:p, :e])[real], np.asarray(cluster.link_id)[real])
    assert (np.asarray(big.link_id) == links + 7).sum() == big.link_id.size - real.sum()  # the rest is the new dummy
    assert float(big.route.sum()) == pytest.approx(float(cluster.route.sum()))


def assert_same(ours: strategies.Outcome, theirs: strategies.Outcome) -> None:
    assert ours.status == theirs.status
    np.testing.assert_array_equal(ours.partition, theirs.partition)
    np.testing.assert_array_equal(ours.start_s, theirs.start_s)
    np.testing.assert_allclose(ours.finish_s, theirs.finish_s, rtol=1e-6)  # sums over longer axes round differently


@pytest.mark.long
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_padded_cluster_gives_every_job_the_same_times(spec, seed):
    """With a partition, servers, groups, racks and links more: nothing starts, finishes or is rejected otherwise."""
    case = strategies.random_case(seed, "two", tree=bool(seed))
    padded = dataclasses.replace(case, cluster=grown(case.cluster))
    config = SHAPE.config()
    small, big = strategies.run(case, spec, config), strategies.run(padded, spec, config, SPECS)
    assert (np.asarray(small.jobs.home) >= SHAPE.partitions).sum() == 0
    np.testing.assert_array_equal(small.jobs.home, big.jobs.home)
    assert_same(strategies.outcome(case, big), strategies.outcome(case, small))
    assert {job for row in strategies.outcome(case, small).workers for job in row}  # something ran


@pytest.mark.long
def test_one_vmapped_program_runs_clusters_of_different_shapes():
    """A batch over `EnvParams.cluster`: every environment its own network, with the times it has alone."""
    names = {"leaf-spine-5": 2, "fat-tree-9": 3, "leaf-spine-1": 1}
    clusters = [get_cluster(name, schedulers) for name, schedulers in names.items()]
    case = strategies.random_case(5, "two", count=24)
    config = SHAPE.config()
    many = stack(clusters)
    assert shape_of(jax.tree.map(lambda leaf: leaf[0], many)) == common_shape(clusters)
    params = make_params(clusters[0]).replace(cluster=many)
    axes = jax.tree.map(lambda _: None, params).replace(cluster=jax.tree.map(lambda _: 0, many))
    run = strategies.jit_run(config, SPECS[:1])
    states, rounds = jax.vmap(run, in_axes=(axes, None, None))(params, case.table, 0)
    assert (np.asarray(rounds) < strategies.MOST_ROUNDS).all()
    for index, cluster in enumerate(clusters):
        alone = dataclasses.replace(case, cluster=cluster, kappa=(1.0,) * 6, max_forwards=2)
        expected = strategies.outcome(alone, strategies.run(alone, SPECS[0], config, SPECS[:1]))
        lane = jax.tree.map(lambda leaf, index=index: leaf[index], states)
        assert_same(strategies.outcome(alone, lane), expected)


def test_homes_count_the_partitions_that_have_servers():
    cluster = grown(get_cluster("leaf-spine-6", 3), Shape(2, 0, 0, 0, 0, 0, 0, 0, 0))
    table = strategies.random_case(2, "two").table
    config = SHAPE.config()
    homes = np.asarray(
        initial_state(config, make_params(cluster), table.replace(workers=table.workers * 0 + 1)).jobs.home
    )
    np.testing.assert_array_equal(homes, np.asarray(table.home) % 3)
    assert set(homes) == {0, 1, 2}


@pytest.mark.parametrize("axis", [field.name for field in dataclasses.fields(Shape)])
def test_a_shape_that_is_too_small_is_refused_by_axis(axis):
    cluster = get_cluster("leaf-spine-4")
    size = getattr(shape_of(cluster), axis)
    with pytest.raises(UserError, match=rf"{axis} = {size} cannot be padded to {axis} = {size - 1}; give {size}"):
        pad(cluster, dataclasses.replace(shape_of(cluster), **{axis: size - 1}))


def test_no_clusters_have_no_common_shape():
    with pytest.raises(UserError, match="at least one"):
        stack([])
