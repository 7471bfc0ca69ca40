"""Every family of networks against closed forms, on the arrays of the built cluster; routes as unit flows."""

import itertools

import jax
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.inventory import make_inventory
from jaxsched.cluster.measures import bisection_bytes_s, figures, in_first_half, link_ends, max_flow
from jaxsched.cluster.presets import SERVERS, get_inventory
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import TOPOLOGIES, bcube, dragonfly, rail, torus2d, torus3d, vl2
from jaxsched.cluster.topology import Topology, fat_tree, from_host_map, leaf_spine
from jaxsched.errors import UserError

GBIT = 1e9 / 8  # bytes/s
NIC = 24.0  # Gbit/s; divides evenly

# name: topology, directed links, bisection in Gbit/s; all with NICs of 24 Gbit/s. N = servers.
CLOSED_FORMS = {
    "leaf-spine, 8 racks of 8 at 3:1": (leaf_spine(64, 8, NIC, 3.0), 2 * 8, 32 * NIC / 3),
    "leaf-spine, 4 spines": (leaf_spine(64, 8, NIC, 2.0, spines=4), 2 * 8 * 4, 32 * NIC / 2),
    "fat-tree of 8 ports": (fat_tree(128, nic_gbits_s=NIC), 2 * (8 * 4 + 8), 64 * NIC),
    "fat-tree, pods at 4:1": (fat_tree(128, nic_gbits_s=NIC, pod_oversubscription=4.0), 2 * (32 + 8), 64 * NIC / 4),
    # D_A D_I/4 racks with 2 uplinks, D_I aggregation switches with D_A/2; as many bytes/s as the servers' NICs.
    "vl2, D = 4": (vl2(32, nic_gbits_s=NIC), 2 * 4 * 4, 16 * NIC),
    "vl2, D_A = 4, D_I = 8": (vl2(64, 8, 4, 8, NIC), 2 * 4 * 8, 32 * NIC),
    "vl2, D = 8 at 2:1": (vl2(128, nic_gbits_s=NIC, oversubscription=2.0), 2 * 8 * 8, 64 * NIC / 2),
    # N/2 servers of one half of the last digit's values have one cable each to the switches that join the halves.
    "bcube, 4 ports, 2 levels": (bcube(16, nic_gbits_s=NIC), 2 * 2 * 16, 8 * NIC / 2),
    "bcube, 8 ports, 2 levels": (bcube(64, nic_gbits_s=NIC), 2 * 2 * 64, 32 * NIC / 2),
    "bcube, 4 ports, 3 levels": (bcube(64, 3, nic_gbits_s=NIC), 2 * 3 * 64, 32 * NIC / 3),
    # g groups: g a (a - 1)/2 local cables, g (g - 1)/2 times floor(a h/(g - 1)) global ones; halves of g/2 groups.
    "dragonfly, p = 2, 8 groups": (dragonfly(64, nic_gbits_s=NIC), 2 * (8 * 6 + 28), 16 * NIC),
    "dragonfly, p = 1, 2 groups": (dragonfly(4, 1, 2, 1, NIC), 2 * (2 * 1 + 2), 2 * NIC),
    # 2 links out of each server and dimension; two rows of cables between halves of the longest side.
    "torus, 8 x 8": (torus2d(64, nic_gbits_s=NIC), 4 * 64, 2 * 8 * NIC / 4),
    "torus, 8 x 4": (torus2d(32, nic_gbits_s=NIC), 4 * 32, 2 * 4 * NIC / 4),
    "torus, 4 x 2": (torus2d(8, nic_gbits_s=NIC), 3 * 8, 2 * 2 * NIC / 4),  # sides of 2 have one cable
    "torus, 4 x 4 x 4": (torus3d(64, nic_gbits_s=NIC), 6 * 64, 2 * 16 * NIC / 6),
    "torus, 2 x 2 x 2": (torus3d(8, nic_gbits_s=NIC), 3 * 8, 4 * NIC / 6),
    "torus, 10 Gbit/s cables": (torus2d(16, link_gbits_s=10.0), 4 * 16, 2 * 4 * 10),
    "rail, 8 rails": (rail(64, nic_gbits_s=NIC), 2 * 8 * 8, 32 * NIC),
    "host map": (from_host_map([("D", p, s) for p in "PQ" for s in "ab"] * 4, NIC), 2 * (4 + 2), 8 * NIC / 2),
}
# Not full, of odd sizes, or both.
IRREGULAR = {
    "leaf-spine": leaf_spine(20),
    "fat-tree": fat_tree(21),
    "vl2": vl2(50),
    "vl2, one rack": vl2(3),
    "bcube": bcube(27),
    "dragonfly": dragonfly(29),
    "dragonfly, several cables": dragonfly(20, 1, 4, 3),
    "dragonfly, one group": dragonfly(5, 2, 4, 2),
    "torus2d": torus2d(15),
    "torus2d, long": torus2d(21, [3, 7]),
    "torus3d": torus3d(36),
    "rail": rail(27, 4, 3),
}
ALL = {name: topology for name, (topology, _, _) in CLOSED_FORMS.items()} | {
    f"{name}*": t for name, t in IRREGULAR.items()
}


@pytest.mark.parametrize(("topology", "links", "bisection"), CLOSED_FORMS.values(), ids=CLOSED_FORMS)
def test_links_and_bisection_are_those_of_the_closed_form(topology, links, bisection):
    servers = len(topology.server_rack)
    cluster = build([Server(nic_gbits_s=NIC)] * servers, topology, 2)
    assert cluster.link_bytes_s.shape == (links + 1,)
    np.testing.assert_allclose(cluster.link_bytes_s[:-1], topology.link_bytes_s)
    assert bisection_bytes_s(topology) == pytest.approx(bisection * GBIT)
    found = figures(make_inventory([Server(nic_gbits_s=NIC)] * servers, topology))
    assert (found.servers, found.links) == (servers, links)
    assert found.oversubscription == pytest.approx(servers / 2 * NIC / bisection)


def routes(topology: Topology):
    """(rack, rack, float64[L]) of every pair, read from a built cluster of one partition."""
    cluster = jax.tree.map(np.asarray, build([Server()] * len(topology.server_rack), topology, 1))
    shares = np.zeros(len(topology.link_names) + 1)
    racks = [rack for rack in cluster.rack_id[0] if rack >= 0]
    for (t, source), (u, target) in itertools.permutations(enumerate(racks), 2):
        shares[:] = 0
        np.add.at(shares, cluster.link_id[0], cluster.route[0, t, u])
        yield source, target, shares[:-1]


@pytest.mark.parametrize("topology", ALL.values(), ids=ALL)
def test_every_route_is_a_unit_flow_over_existing_links_and_visits_no_node_twice(topology):
    tails, heads = link_ends(topology).T
    assert (tails != heads).all()
    nodes = len(topology.node_names)
    assert len(set(topology.node_names)) == nodes and len(set(topology.link_names)) == len(topology.link_names)
    assert link_ends(topology).min() >= 0 and link_ends(topology).max() < nodes
    for source, target, shares in routes(topology):
        assert shares.min() >= 0 and shares.max() <= 1 + 1e-6
        out, into = np.bincount(tails, shares, nodes), np.bincount(heads, shares, nodes)
        expected = np.zeros(nodes)
        expected[source], expected[target] = 1, -1
        np.testing.assert_allclose(out - into, expected, atol=1e-5)
        assert max(out.max(), into.max()) <= 1 + 1e-5 and into[source] == out[target] == 0


@pytest.mark.parametrize("topology", ALL.values(), ids=ALL)
def test_every_cable_goes_both_ways_alike(topology):
    capacity: dict[tuple[int, int], float] = {}
    for (a, b), size in zip(link_ends(topology).tolist(), topology.link_bytes_s, strict=True):
        capacity[a, b] = capacity.get((a, b), 0.0) + size
    assert all(capacity[b, a] == pytest.approx(size) for (a, b), size in capacity.items())


FULL = {
    "leaf-spine": (leaf_spine(32, 4), 1),
    "fat-tree": (fat_tree(54), 2),
    "vl2": (vl2(128), 1),
    "bcube": (bcube(27), 1),
    "bcube, 3 levels": (bcube(64, 3), 1),
    "dragonfly": (dragonfly(72), 2),
    "torus2d": (torus2d(36), 1),
    "torus2d, odd": (torus2d(25), 1),
    "torus2d, 8 x 4": (torus2d(32), 2),
    "torus3d": (torus3d(64), 1),
    "rail": (rail(64), 1),
}


@pytest.mark.parametrize(("topology", "classes"), FULL.values(), ids=FULL)
def test_with_equal_traffic_between_all_racks_links_of_a_kind_are_equally_loaded(topology, classes):
    """Two kinds where tiers, sides or local and global cables carry different loads; VL2's tiers happen not to."""
    load = sum((shares for _, _, shares in routes(topology)), np.zeros(len(topology.link_names)))
    assert len({round(float(value), 3) for value in load}) == classes
    assert load.min() > 0


def neighbours(topology: Topology) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {node: [] for node in range(len(topology.node_names))}
    for tail, head in link_ends(topology).tolist():
        found[tail].append(head)
    return found


def shortest_paths(topology: Topology, source: int, target: int) -> list[list[int]]:
    """Every shortest path, found by lengthening all walks."""
    joined, paths = neighbours(topology), [[source]]
    while not any(path[-1] == target for path in paths):
        paths = [[*path, node] for path in paths for node in joined[path[-1]] if node not in path]
    return [path for path in paths if path[-1] == target]


def evenly(topology: Topology, paths: list[list[int]]) -> np.ndarray:
    """float64[L]: shares of a unit of traffic that each path takes an equal part of."""
    ends = [tuple(pair) for pair in link_ends(topology).tolist()]
    hops = [hop for path in paths for hop in itertools.pairwise(path)]
    return np.array([hops.count(pair) / len(paths) for pair in ends])


@pytest.mark.parametrize("topology", [bcube(9), bcube(27, 3), bcube(16, 4), leaf_spine(24, 4, spines=3)])
def test_equal_cost_paths_share_the_traffic_evenly(topology):
    """All shortest paths, one as much as the other."""
    for source, target, shares in itertools.islice(routes(topology), 60):
        np.testing.assert_allclose(shares, evenly(topology, shortest_paths(topology, source, target)), atol=1e-6)


def dimension_ordered(topology: Topology, path: list[int]) -> bool:
    """The coordinates that change along the path of racks are in order of the dimensions."""
    points = [topology.rack_names[node].removeprefix("server").strip("()").split(",") for node in path]
    axes = [next(i for i in range(len(a)) if a[i] != b[i]) for a, b in itertools.pairwise(points)]
    return axes == sorted(axes)


@pytest.mark.parametrize("topology", [torus2d(16), torus2d(15), torus2d(32), torus3d(27), torus3d(32), torus2d(8)])
def test_tori_route_in_dimension_order_by_all_shortest_such_paths(topology):
    """Rings of even length have two equal ways to the opposite server; each takes half."""
    for source, target, shares in itertools.islice(routes(topology), 0, None, 7):
        paths = [path for path in shortest_paths(topology, source, target) if dimension_ordered(topology, path)]
        np.testing.assert_allclose(shares, evenly(topology, paths), atol=1e-6)


def test_vl2_spreads_over_both_aggregation_and_all_intermediate_switches():
    topology = vl2(128)  # D = 8: 4 intermediate switches; racks 0 and 1 share their aggregation switches
    for target in (1, 15):
        shares = sorted(topology.route(0, target).values())
        used = {topology.link_names[link].split(">")[1] for link in topology.route(0, target)}
        assert {f"intermediate{i}" for i in range(4)} <= used
        assert shares == pytest.approx([1 / 8] * 16 + [1 / 2] * 4)


def test_dragonfly_goes_by_at_most_one_global_and_two_local_cables():
    topology = dragonfly(72)
    group = np.array([int(name[5 : name.index("/")]) for name in topology.rack_names])
    crosses = group[link_ends(topology)[:, 0]] != group[link_ends(topology)[:, 1]]
    for source, target, shares in routes(topology):
        assert shares[crosses].sum() == pytest.approx(float(group[source] != group[target]))
        assert shares[~crosses].sum() <= 2 + 1e-6
    pairs = {tuple(group[ends]) for ends in link_ends(topology)[crosses]}
    assert len(pairs) == crosses.sum() == 9 * 8  # every two groups by one cable


def test_dragonfly_takes_the_routers_own_cable_where_it_has_one_and_else_all_evenly():
    topology = dragonfly(12, 1, 4, 2)  # 3 groups of 4 routers, 4 cables between every two groups
    routers = [set() for _ in range(12)]
    for tail, head in link_ends(topology).tolist():
        routers[tail].add(head)
    for source, target in itertools.product(range(4), range(4, 8)):
        crossing = [share for e, share in topology.route(source, target).items() if link_ends(topology)[e][0] // 4 == 0
                    and link_ends(topology)[e][1] // 4 == 1]  # fmt: skip
        own = any(head // 4 == 1 for head in routers[source])
        assert sum(crossing) == pytest.approx(1)
        assert own or crossing == pytest.approx([1 / 2, 1 / 2])  # two pairs of routers, two cables each


@pytest.mark.parametrize("topology", [bcube(4), bcube(8), vl2(32), leaf_spine(24, 4, spines=3), fat_tree(16)])
def test_the_greatest_flow_is_the_least_of_all_cuts(topology):
    """Brute force over all sides that the switches can be on (max-flow min-cut)."""
    racks, switches = len(topology.rack_names), len(topology.switch_names)
    first = in_first_half(topology)
    cuts = []
    for choice in itertools.product([False, True], repeat=switches):
        side = np.array([*first, *choice])
        leaves = side[link_ends(topology)[:, 0]] & ~side[link_ends(topology)[:, 1]]
        cuts.append(topology.link_bytes_s[leaves].sum())
    halves = set(np.flatnonzero(first).tolist()), set(np.flatnonzero(~first).tolist())
    assert max_flow(link_ends(topology), topology.link_bytes_s, *halves) == pytest.approx(min(cuts))
    assert len(halves[0]) + len(halves[1]) == racks


def test_one_rack_has_no_bisection():
    assert bisection_bytes_s(leaf_spine(3)) == float("inf")
    assert figures(get_inventory("rail-3")).oversubscription == 0


def test_lingjun_is_cut_where_its_racks_are(cluster_data):
    found = figures(get_inventory(str(cluster_data / "lingjun_hosts.csv")))
    assert (found.servers, found.racks, found.switches, found.links) == (847, 119, 3 + 1, 2 * (119 + 3))
    topology = get_inventory(str(cluster_data / "lingjun_hosts.csv")).topology
    first = in_first_half(topology)
    fewer = min(first.sum(), (~first).sum())  # racks of 8 at 2:1 are all that limits
    assert found.bisection_gbits_s == pytest.approx(fewer * 8 * 25 / 2)


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_a_thousand_servers_can_be_built(kind):
    cluster = get_inventory(f"{kind}-1024").build()
    assert cluster.shape == ((1, 1024, 1) if kind in SERVERS else (64, 16, 2))
    assert cluster.route.nbytes < 100e6


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: bcube(60), r"power n\^levels, levels >= 2.* not 60; the nearest sizes are 49 and 64"),
        (lambda: bcube(65, 3), r"n\^3 servers.* not 65; the nearest sizes are 27 and 64"),
        (lambda: bcube(64, 0), "levels"),
        (lambda: torus2d(7), r"no 2-D torus.* nearest such: 6, 8"),
        (lambda: torus3d(64 + 1), r"no 3-D torus.* nearest such: 64, 72"),
        (lambda: torus2d(1), r"nearest such: 4 \(or give sides\)"),
        (lambda: torus2d(12, [5, 3]), r"sides \[5, 3\] hold 15 servers, not 12"),
        (lambda: torus2d(12, [12]), "sides is .* 2 whole numbers"),
        (lambda: torus2d(12, [12, 1]), "sides is 1"),
        (lambda: torus3d(8, link_gbits_s=0), "link_gbits_s"),
        (lambda: vl2(64, aggregation_ports=3), "aggregation_ports is 3; it must be even"),
        (lambda: vl2(64, 8, 4, 4), "hold 4 racks, not 8; the product of the ports must be 32 or more"),
        (lambda: dragonfly(73, 2, 4, 2), "fill 10 groups.* join only 9; give num_servers up to 72"),
        (lambda: dragonfly(8, global_ports=0), "global_ports"),
        (lambda: rail(8, rails=0), "rails"),
        (lambda: bisection_bytes_s(Topology(np.array([0, 1]), ("a", "b"), ("e",), np.ones(1), lambda t, u: {0: 1.0})),
         "link_ends is not given"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fill_a_network_are_refused_with_what_would(call, says):
    with pytest.raises(UserError, match=says):
        call()
