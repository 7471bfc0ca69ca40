"""Topologies: link counts and capacities against closed forms, routes against what a tree of switches must do."""

import itertools

import numpy as np
import pytest

from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import Topology, fat_tree, from_host_map, leaf_spine
from jaxsched.errors import UserError

GBIT = 1e9 / 8  # bytes/s

HOSTS = (
    [("D0", "P0", "S0")] * 3 + [("D0", "P0", "S1")] * 2 + [("D0", "P1", "S0")] + [("D1", "P0", "S0")] * 2
)  # S0 stands under three PSWs, P0 under two DSWs

TREES = {
    "leaf-spine": leaf_spine(40, servers_per_rack=8),
    "leaf-spine, 3 spines": leaf_spine(20, servers_per_rack=4, spines=3),
    "fat-tree": fat_tree(40),
    "fat-tree, big pods": fat_tree(40, servers_per_rack=4, racks_per_pod=3),
    "host map": from_host_map(HOSTS),
}


def names_of(topology: Topology, links) -> set[str]:
    return {topology.link_names[link] for link in links}


def pairs(topology: Topology):
    return itertools.permutations(range(len(topology.rack_names)), 2)


@pytest.mark.parametrize("topology", TREES.values(), ids=TREES)
def test_traffic_leaves_by_the_source_rack_and_enters_by_the_target_rack(topology):
    racks = topology.rack_names
    for source, target in pairs(topology):
        route = topology.route(source, target)
        assert all(0 < share <= 1 for share in route.values())
        for name, way in itertools.product(racks, ("up", "down")):
            own = [link for link in route if topology.link_names[link].startswith(f"{name}:{way}")]
            all_of_it = (way, name) in {("up", racks[source]), ("down", racks[target])}
            assert sum(route[link] for link in own) == pytest.approx(float(all_of_it)), (source, target, name, way)


@pytest.mark.parametrize("topology", TREES.values(), ids=TREES)
def test_what_goes_up_comes_down_and_nothing_moves_inside_a_rack(topology):
    for source, target in pairs(topology):
        route = topology.route(source, target)
        total = {way: sum(s for e, s in route.items() if f":{way}" in topology.link_names[e]) for way in ("up", "down")}
        assert total["up"] == pytest.approx(total["down"])
    for rack in range(len(topology.rack_names)):
        assert not topology.route(rack, rack)


def test_leaf_spine_closed_form():
    topology = leaf_spine(20, servers_per_rack=8, nic_gbits_s=100, oversubscription=2.5)
    assert topology.rack_names == ("rack0", "rack1", "rack2")
    np.testing.assert_array_equal(topology.server_rack, [0] * 8 + [1] * 8 + [2] * 4)
    assert len(topology.link_names) == 2 * 3
    np.testing.assert_allclose(topology.link_bytes_s, 8 * 100 * GBIT / 2.5)
    assert names_of(topology, topology.route(2, 0)) == {"rack2:up", "rack0:down"}


def test_spines_are_cables_of_the_bundle():
    """Kept apart or merged: the same capacity in all, and the same bytes per capacity for every flow."""
    merged, apart = leaf_spine(24), leaf_spine(24, spines=4)
    assert len(apart.link_names) == 2 * 3 * 4
    assert apart.link_bytes_s.sum() == pytest.approx(merged.link_bytes_s.sum())
    route = apart.route(1, 2)
    assert len(route) == 2 * 4
    times = [share / apart.link_bytes_s[link] for link, share in route.items()]
    np.testing.assert_allclose(times, 1 / merged.link_bytes_s[0])


def test_hashed_flows_stay_on_their_spines():
    """Of 3 flows over 4 spines at least one spine has none, and what goes up to a spine comes down from it."""
    hashed, other = (leaf_spine(64, spines=4, flows=3, seed=seed) for seed in (0, 1))
    spread = []
    for source in range(8):
        for target in range(8):
            route = hashed.route(source, target)
            up, down = np.zeros(4), np.zeros(4)
            for link, share in route.items():
                (up if link // 4 == 2 * source else down)[link % 4] += share
            np.testing.assert_array_equal(up, down)
            assert up.sum() == pytest.approx(float(source != target)) and (up == 0).any()
            spread += [up] if source != target else []
    np.testing.assert_allclose(np.mean(spread, 0), 0.25, atol=0.1)
    assert hashed.route(0, 1) == leaf_spine(64, spines=4, flows=3).route(0, 1)
    assert any(hashed.route(0, rack) != other.route(0, rack) for rack in range(1, 8))
    one = leaf_spine(64, spines=4, flows=1).route(0, 1)
    assert len(one) == 2 and set(one.values()) == {1.0}


@pytest.mark.parametrize(("ports", "servers"), [(2, 2), (4, 16), (6, 54), (8, 128)])
def test_fat_tree_is_the_classic_one(ports, servers):
    """k pods of k/2 racks of k/2 servers, and every tier carries all servers at full rate."""
    topology = fat_tree(servers, nic_gbits_s=10)
    half = ports // 2
    assert len(topology.rack_names) == ports * half
    assert len(topology.link_names) == 2 * (ports * half + ports)
    for kind in ("rack", "pod"):
        up = [name.startswith(kind) and name.endswith(":up") for name in topology.link_names]
        assert topology.link_bytes_s[up].sum() == pytest.approx(servers * 10 * GBIT)


def test_fat_tree_oversubscription_multiplies_along_the_way():
    topology = fat_tree(64, 8, 4, nic_gbits_s=25, rack_oversubscription=2.0, pod_oversubscription=4.0)
    capacity = dict(zip(topology.link_names, topology.link_bytes_s, strict=True))
    assert capacity["rack0:up"] == pytest.approx(8 * 25 * GBIT / 2)
    assert capacity["pod1:down"] == pytest.approx(4 * 8 * 25 * GBIT / 2 / 4)


def test_fat_tree_uses_pod_links_only_between_pods():
    topology = fat_tree(64, servers_per_rack=8, racks_per_pod=4)
    assert names_of(topology, topology.route(0, 3)) == {"rack0:up", "rack3:down"}
    assert names_of(topology, topology.route(3, 4)) == {"rack3:up", "pod0:up", "pod1:down", "rack4:down"}


def test_host_map_names_are_local_to_the_layer_above():
    topology = from_host_map(HOSTS, nic_gbits_s=25, rack_oversubscription=2.0, pod_oversubscription=3.0)
    assert topology.rack_names == ("D0/P0/S0", "D0/P0/S1", "D0/P1/S0", "D1/P0/S0")
    np.testing.assert_array_equal(topology.server_rack, [0, 0, 0, 1, 1, 2, 3, 3])
    capacity = dict(zip(topology.link_names, topology.link_bytes_s, strict=True))
    rack = 3 * 25 * GBIT / 2  # the fullest rack has 3 hosts, the biggest pod 2 racks, the biggest core 2 pods
    assert capacity["D1/P0/S0:up"] == pytest.approx(rack)
    assert capacity["D1/P0:up"] == pytest.approx(rack * 2 / 3)
    assert capacity["D1:up"] == pytest.approx(2 * rack * 2 / 3)
    assert names_of(topology, topology.route(0, 1)) == {"D0/P0/S0:up", "D0/P0/S1:down"}
    assert names_of(topology, topology.route(2, 0)) == {"D0/P1/S0:up", "D0/P1:up", "D0/P0:down", "D0/P0/S0:down"}
    assert names_of(topology, topology.route(0, 3)) == {
        "D0/P0/S0:up",
        "D0/P0:up",
        "D0:up",
        "D1:down",
        "D1/P0:down",
        "D1/P0/S0:down",
    }


def test_host_map_of_one_core_has_no_core_links():
    topology = from_host_map([host for host in HOSTS if host[0] == "D0"])
    assert len(topology.link_names) == 2 * (3 + 2)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: leaf_spine(0), "num_servers"),
        (lambda: leaf_spine(8, servers_per_rack=0), "servers_per_rack"),
        (lambda: leaf_spine(8, oversubscription=-1.0), "oversubscription"),
        (lambda: leaf_spine(8, nic_gbits_s=float("nan")), "nic_gbits_s"),
        (lambda: leaf_spine(8, spines=0), "spines"),
        (lambda: leaf_spine(8, flows=4), "flows is 4, without spines"),
        (lambda: leaf_spine(8, spines=2, flows=0), "flows"),
        (lambda: leaf_spine(8, spines=2, flows=1, seed=-1), "seed"),
        (lambda: fat_tree(8, racks_per_pod=1.5), "racks_per_pod"),
        (lambda: fat_tree(8, pod_oversubscription=float("inf")), "pod_oversubscription"),
        (lambda: from_host_map([]), "no hosts"),
        (lambda: Topology(np.array([0, 2]), ("r0", "r1"), (), np.zeros(0), lambda t, u: {}), "server_rack"),
        (lambda: Topology(np.array([0]), ("r0",), ("e",), np.array([0.0]), lambda t, u: {}), "link capacity"),
        (lambda: Topology(np.array([0]), ("r0",), ("e",), np.ones(2), lambda t, u: {}), "1 links"),
        (lambda: Server(groups=()), "groups"),
        (lambda: Server(groups=(4, 0)), "groups"),
        (lambda: Server(cores=0), "cores"),
        (lambda: Server(nic_gbits_s=float("inf")), "nic_gbits_s"),
        (lambda: Server(gpu_type=""), "gpu_type"),
    ],
)
def test_bad_parts_are_refused_by_name(call, field):
    with pytest.raises(UserError, match=field):
        call()
