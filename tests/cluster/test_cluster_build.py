"""`build`: shapes, padding, local racks and links, for uniform and for mixed servers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.gpu_types import GPU_SPEEDS, GPU_TYPES, numbered_types, relative_speeds
from jaxsched.cluster.hardware import distinct_speeds, reference_type, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.cluster.servers import Server, default_schedulers, gpu_types, partition_rows, split_gpus
from jaxsched.cluster.topology import Topology, fat_tree, leaf_spine
from jaxsched.errors import UserError

MIXED = [
    Server(groups=(4, 4), gpu_type="V100", cores=64, pcie_gbytes_s=12, qpi_gbytes_s=20, nic_gbits_s=25),
    Server(groups=(2,), gpu_type="T4", cores=16, pcie_gbytes_s=6, qpi_gbytes_s=10, nic_gbits_s=10),
    Server(groups=(3, 3, 2), gpu_type="A100", cores=96, pcie_gbytes_s=24, qpi_gbytes_s=40, nic_gbits_s=100),
    Server(groups=(1,), gpu_type="V100", cores=8),
    Server(groups=(8,), gpu_type="T4", cores=32),
]


def bus(num_racks: int) -> Topology:
    """Not a tree: traffic t -> u takes one private link for 3/4 and a bus shared by all for 1/4."""
    private = num_racks * num_racks
    return Topology(
        server_rack=np.arange(num_racks),
        rack_names=tuple(f"r{t}" for t in range(num_racks)),
        link_names=tuple(f"l{e}" for e in range(private + 1)),
        link_bytes_s=np.arange(private + 1) + 1.0,
        route=lambda t, u: {t * num_racks + u: 0.75, private: 0.25},
    )


def test_mixed_servers_fill_the_arrays_and_padding_is_one():
    cluster = build(MIXED, leaf_spine(5, servers_per_rack=2), schedulers=2)
    assert cluster.shape == (2, 3, 3)
    np.testing.assert_array_equal(cluster.server_id, [[0, 1, 2], [3, 4, -1]])
    np.testing.assert_array_equal(cluster.group_gpus[0], [[4, 4, 0], [2, 0, 0], [3, 3, 2]])
    np.testing.assert_array_equal(cluster.group_gpus[1], [[1, 0, 0], [8, 0, 0], [0, 0, 0]])
    assert gpu_types(MIXED) == ("V100", "T4", "A100")
    v100, t4, a100 = (GPU_TYPES.index(name) for name in ("V100", "T4", "A100"))
    assert numbered_types(["own", "T4"]) == {**{name: i for i, name in enumerate(GPU_TYPES)}, "own": len(GPU_TYPES)}
    np.testing.assert_array_equal(cluster.group_gpu_type[0], [[v100, v100, -1], [t4, -1, -1], [a100, a100, a100]])
    assert reference_type(cluster) == "T4"  # 10 GPUs of 27
    unit = GPU_SPEEDS["T4"]
    np.testing.assert_allclose(cluster.group_speed[0, :, 0], [1 / unit, 1, GPU_SPEEDS["A100"] / unit], rtol=1e-6)
    np.testing.assert_allclose(cluster.group_cores[0], [[32, 32, 1], [16, 1, 1], [32, 32, 32]])
    np.testing.assert_allclose(cluster.pcie_bytes_s[0], [[12e9, 12e9, 1], [6e9, 1, 1], [24e9, 24e9, 24e9]])
    np.testing.assert_allclose(cluster.qpi_bytes_s, [[20e9, 10e9, 40e9], [20e9, 20e9, 1]])
    np.testing.assert_allclose(cluster.nic_bytes_s, [[3.125e9, 1.25e9, 12.5e9], [3.125e9, 3.125e9, 1]])
    padding = np.asarray(cluster.group_gpus) == 0
    for leaf in (cluster.group_speed, cluster.group_cores, cluster.pcie_bytes_s):
        np.testing.assert_array_equal(np.asarray(leaf)[padding], 1)
    assert total_gpus(cluster) == sum(server.gpus for server in MIXED) == 27


def test_racks_and_links_are_local_to_the_partition():
    cluster = build(MIXED, leaf_spine(5, servers_per_rack=2), schedulers=2)
    np.testing.assert_array_equal(cluster.rack_id, [[0, 1], [1, 2]])  # rack 1 is shared
    np.testing.assert_array_equal(cluster.server_rack, [[0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(cluster.link_id, [[0, 1, 2, 3], [2, 3, 4, 5]])  # rack0 up, down, rack1 up, ...
    expected = np.zeros((2, 2, 4))
    expected[0, 1, [0, 3]] = 1  # up from the first rack, down to the second
    expected[1, 0, [2, 1]] = 1
    np.testing.assert_array_equal(cluster.route, [expected, expected])
    assert cluster.link_bytes_s.shape == (7,)
    assert cluster.link_bytes_s[-1] == 1


def test_leaves_have_the_agreed_types():
    cluster = build(MIXED, fat_tree(5), schedulers=5)
    integers = {"group_gpus", "group_gpu_type", "server_id", "server_rack", "rack_id", "link_id", "reference"}
    integers |= {"reservable", "path", "domain_block", "uneven"}
    for name in (field.name for field in dataclasses.fields(cluster) if not field.metadata.get("static")):
        leaf = getattr(cluster, name)
        assert isinstance(leaf, jax.Array), name
        assert leaf.dtype == (jnp.int32 if name in integers else jnp.float32), name


@pytest.mark.parametrize(
    ("name", "schedulers", "uneven"),
    [
        ("torus3d-16", 1, [1]),
        ("torus3d-16", 4, [1] * 4),
        ("fat-tree-8", 1, [1]),
        ("dragonfly-9", 2, [0, 1]),
        ("dragonfly-16", 4, []),
        ("leaf-spine-16", 1, []),
    ],
)
def test_racks_are_unevenly_far_apart_in_a_partition(name, schedulers, uneven):
    assert np.asarray(get_cluster(name, schedulers).uneven).ravel().tolist() == uneven


def test_one_rack_needs_no_link():
    cluster = build([Server()] * 4, leaf_spine(4), schedulers=2)
    np.testing.assert_array_equal(cluster.link_id, [[2], [2]])  # the dummy
    np.testing.assert_array_equal(cluster.route, np.zeros((2, 1, 1, 1)))


@pytest.mark.parametrize("schedulers", [1, 2, 3])
@pytest.mark.parametrize(
    "topology", [leaf_spine(30, servers_per_rack=4), leaf_spine(30, 4, spines=2), fat_tree(30, 4, 2), bus(30)]
)
def test_local_routes_are_the_topologys_routes(topology, schedulers):
    cluster = build([Server()] * 30, topology, schedulers)
    for partition in range(schedulers):
        racks = [int(rack) for rack in cluster.rack_id[partition] if rack >= 0]
        links = [int(link) for link in cluster.link_id[partition]]
        real = [link for link in links if link < len(topology.link_names)]
        route = np.asarray(cluster.route[partition], np.float64)
        assert len(set(real)) == len(real)
        assert set(real) == {e for t in racks for u in racks if t != u for e in topology.route(t, u)}
        for t, source in enumerate(racks):
            for u, target in enumerate(racks):
                shares = {} if t == u else topology.route(source, target)
                np.testing.assert_allclose(route[t, u], [shares.get(link, 0) for link in links])
        assert not route[len(racks) :].any()
        assert not route[:, len(racks) :].any()
    np.testing.assert_array_equal(routes_of_paths(cluster), cluster.route)


def routes_of_paths(cluster) -> np.ndarray:
    """`route` of the lists of links."""
    route = np.zeros(cluster.route.shape, np.float32)
    for (*pair, hop), share in np.ndenumerate(cluster.path_share):
        route[(*pair, int(cluster.path[(*pair, hop)]))] += share
        assert share > 0 or not np.any(cluster.path_share[(*pair, slice(hop, None))])  # padding comes last
    return route


@pytest.mark.parametrize("schedulers", [1, 2, 3, 4, 5, 8, 15, 29])
def test_partitions_cover_every_server_once_and_know_its_rack(schedulers):
    topology = leaf_spine(29, servers_per_rack=3)
    cluster = build([Server()] * 29, topology, schedulers)
    ids = np.asarray(cluster.server_id)
    assert sorted(ids[ids >= 0]) == list(range(29))
    assert ids.shape == (schedulers, -(-29 // schedulers))
    assert (ids[:, 0] >= 0).all()
    for partition, slot in np.argwhere(ids >= 0):
        rack = cluster.rack_id[partition, cluster.server_rack[partition, slot]]
        assert rack == topology.server_rack[ids[partition, slot]]


@pytest.mark.parametrize("num_servers", range(1, 70))
def test_the_default_number_of_schedulers_is_legal(num_servers):
    schedulers = default_schedulers([Server()] * num_servers)
    rows = partition_rows(num_servers, schedulers)
    assert rows.shape[1] <= 16
    assert schedulers >= min(2, num_servers)
    assert num_servers % 16 or num_servers == 16 or schedulers == num_servers // 16


def test_empty_partitions_are_refused_with_a_number_that_works():
    with pytest.raises(UserError, match=r"10 servers in blocks of 2 fill only 5 partitions; 5 schedulers"):
        build([Server()] * 10, leaf_spine(10), schedulers=6)
    build([Server()] * 10, leaf_spine(10), schedulers=5)


@pytest.mark.parametrize("schedulers", [0, -1, 5, True, 1.5, "2"])
def test_impossible_numbers_of_schedulers_are_refused(schedulers):
    with pytest.raises(UserError, match=r"schedulers is .*from 1 to 4"):
        build([Server()] * 4, leaf_spine(4), schedulers)


def test_the_topology_must_place_all_servers():
    with pytest.raises(UserError, match="places 3 servers, but the cluster has 4"):
        build([Server()] * 4, leaf_spine(3), 1)


def test_a_route_table_too_large_for_memory_is_refused_before_it_is_made():
    with pytest.raises(UserError, match=r"2048 racks .* use more than 1 schedulers"):
        build([Server()] * 2048, leaf_spine(2048, servers_per_rack=1), 1)


def test_gpu_speeds_are_relative_to_the_type_of_most_gpus():
    assert relative_speeds(["K80"], "K80") == [1.0]
    assert relative_speeds(["V100", "X"], "X", {"V100": 1.0, "X": 4.0}) == [0.25, 1.0]
    with pytest.raises(UserError, match=r"'B9000' has no speed; known types: V100, "):
        build([Server(gpu_type="B9000")], leaf_spine(1), 1)
    cluster = build([Server(gpu_type="B9000"), Server()], leaf_spine(2), 1, {**GPU_SPEEDS, "B9000": 8.0})
    assert reference_type(cluster) == "V100" and cluster.gpu_types == (*GPU_TYPES, "B9000")  # of as many, the first
    np.testing.assert_array_equal(cluster.group_speed[0, :, 0], [8.0, 1.0])
    assert [distinct_speeds(cluster), distinct_speeds(build([Server()] * 2, leaf_spine(2), 1))] == [2, 1]


@pytest.mark.parametrize(
    ("gpus", "groups"), [(1, (1,)), (2, (2,)), (3, (2, 1)), (4, (2, 2)), (8, (4, 4)), (16, (8, 8))]
)
def test_gpus_are_split_over_sockets(gpus, groups):
    assert split_gpus(gpus) == groups
