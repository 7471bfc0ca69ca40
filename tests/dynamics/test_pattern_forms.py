"""Bytes on every wire of each pattern, by hand on two small fabrics (docs/semantics.md, section 3, "Plans").

Four servers of two groups of two GPUs hold 16 ranks, in order. Under leaf-spine the racks are servers 0, 1 and 2, 3.
The torus has sides 2 and 2, servers 0 and 3 opposite each other; a route follows the first dimension first: from 0 to 3
by 2, from 3 to 0 by 1, from 1 to 2 by 3, from 2 to 1 by 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import one_partition
from jaxsched.cluster.measures import bisection_bytes_s, link_ends
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import torus2d
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.patterns import count_pairs, plan_bytes
from jaxsched.dynamics.traffic import placement_bytes
from jaxsched.workload.patterns import Patterns, make_table
from tests.support.plans import patterns

SERVER = Server(groups=(2, 2), nic_gbits_s=8.0)
FABRICS = {"leaf-spine": leaf_spine(4, 2, 8.0, 2.0), "torus": torus2d(4, [2, 2], 8.0)}
CLUSTERS = {name: build([SERVER] * 4, fabric, 1) for name, fabric in FABRICS.items()}
RACKS_OF_LINKS = ("0>1", "1>0", "0>2", "2>0", "1>3", "3>1", "2>3", "3>2")


class Form(NamedTuple):
    """Bytes of groups, of QPI and NICs of servers, of links between the racks, and of those of the torus."""

    plan: Patterns
    pcie: list[float]
    qpi: list[float]
    nic: list[float]
    spine: float
    torus: list[float]  # in the order of RACKS_OF_LINKS


RING = 2 * 15 / 16 * 160
FORMS = {
    # Each server sends to the next one: 0, 1, 2, 3 and back.
    "ring": Form(patterns(data=16, nbytes=(0, RING, 0, 0, 0)), [RING] * 8, [RING] * 4, [RING] * 4, RING,
                 [RING, RING, 0, 0, RING, RING, RING, RING]),
    # Rings of 4 in a server: 2 * 3/4 * 160 = 240. A ring of 4 servers: as much, half of it by each group.
    "hierarchical": Form(patterns(data=16, summed=(160, 0)), [240 + 120] * 8, [240] * 4, [240] * 4, 240,
                         [240, 240, 0, 0, 240, 240, 240, 240]),
    # Trees 3-2, 1-2, 2-0 and, one further, 0-3, 2-3, 3-1; 80 along each edge. Servers 0 and 1 have two, 2 and 3 four.
    "tree": Form(patterns(data=16, summed=(160, 0), tree=True), [240 + 80] * 4 + [240 + 160] * 4, [240] * 4,
                 [160, 160, 320, 320], 320, [80, 80, 160, 160, 160, 160, 240, 240]),
    # A stage is a server; its 4 ranks send 10 each to the stages before and behind.
    "neighbours": Form(patterns(data=4, pipeline=4, nbytes=(0, 0, 0, 10, 0)), [20, 20, 40, 40, 40, 40, 20, 20], [0] * 4,
                       [40, 80, 80, 40], 40, [80, 40, 0, 40, 40, 0, 40, 80]),
    # A group of 2 sends to 14 others, 2 to 2 over QPI, 4 to 12 over a NIC; two racks of 8, or four of 4, exchange.
    "all to all": Form(patterns(data=16, expert=16, nbytes=(0, 0, 0, 0, 10)), [280] * 8, [40] * 4, [480] * 4, 640,
                       [320] * 8),
    # Rings of 8 ranks on servers 0 and 1, and on 2 and 3.
    "tensor": Form(patterns(tensor=8, data=2, nbytes=(10, 0, 0, 0, 0)), [10] * 8, [10] * 4, [10] * 4, 0,
                   [10, 10, 0, 0, 0, 0, 10, 10]),
    # Copies of an expert are T E = 4 ranks apart: four rings, each with a rank in every server.
    "experts' gradients": Form(patterns(tensor=2, data=8, expert=2, nbytes=(0, 0, 10, 0, 0)), [20] * 8, [0] * 4,
                               [40] * 4, 40, [40, 40, 0, 0, 40, 40, 40, 40]),
}  # fmt: skip


@jax.jit
def sent(cluster, plan, gpus):
    return plan_bytes(one_partition(cluster, 0), jax.tree.map(lambda leaf: leaf[0], plan), gpus)


def wires(fabric: str, plan: Patterns) -> tuple[list[list[float]], dict[str, float]]:
    """Bytes of groups, QPI and NICs, and by the link: its ends, servers or racks, are the first two nodes it joins."""
    cluster = CLUSTERS[fabric]
    found = np.asarray(sent(cluster, make_table([plan]), jnp.full((4, 2), 2)))
    *inside, links = np.split(found, [8, 12, 16])
    of = np.zeros(len(FABRICS[fabric].link_names) + 1)
    np.add.at(of, np.asarray(cluster.link_id[0]), links)
    names = [f"{a}>{b}" for a, b in link_ends(FABRICS[fabric]).tolist()]
    return [part.tolist() for part in inside], dict(zip(names, of[:-1].tolist(), strict=True))


@pytest.mark.parametrize("name", FORMS)
def test_bytes_by_hand(name):
    form = FORMS[name]
    for fabric in FABRICS:
        (pcie, qpi, nic), links = wires(fabric, form.plan)
        assert (pcie, qpi, nic) == (form.pcie, form.qpi, form.nic), fabric
        if fabric == "leaf-spine":
            assert set(links.values()) == {form.spine}
        else:
            assert links == dict(zip(RACKS_OF_LINKS, form.torus))


def test_all_to_all_takes_what_the_bisection_says():
    """Half of the ranks send to the other half: 8 * 8 messages, at the bandwidth between the halves."""
    for name, fabric in FABRICS.items():
        _, links = wires(name, FORMS["all to all"].plan)
        slowest_s = max(np.array(list(links.values())) / fabric.link_bytes_s)
        assert slowest_s == pytest.approx(8 * 8 * 10 / bisection_bytes_s(fabric))


def test_the_ring_is_that_of_a_job_without_a_plan():
    for cluster in CLUSTERS.values():
        w = jnp.full((4, 2), 2)
        ring = placement_bytes(one_partition(cluster, 0), w, jnp.zeros_like(w), jnp.int32(1), jnp.float32(160))
        np.testing.assert_array_equal(sent(cluster, make_table([FORMS["ring"].plan]), w), ring)


@pytest.mark.slower
def test_one_rank_in_a_server_sums_up_nothing_there():
    """Then domains exchange what a ring exchanges."""
    for name, cluster in CLUSTERS.items():
        gpus = jnp.array([[1, 0]] * 4)
        flat = patterns(data=4, nbytes=(0, 2 * 3 / 4 * 160, 0, 0, 0))
        found = sent(cluster, make_table([patterns(data=4, summed=(160, 0))]), gpus)
        np.testing.assert_array_equal(found, sent(cluster, make_table([flat]), gpus), name)


def test_pairs_that_exchange_are_those_counted_one_by_one():
    rng = np.random.default_rng(0)
    for _ in range(100):
        stride, size, blocks = (int(rng.integers(1, most)) for most in (6, 7, 5))
        ends = [sorted(rng.integers(0, stride * size * blocks + 1, 2).tolist()) for _ in range(2)]
        group = lambda rank: (rank // (stride * size), rank % stride)  # noqa: B023
        found = count_pairs(stride, size, *[tuple(map(jnp.int32, end)) for end in ends])
        pairs = [(one, other) for one in range(*ends[0]) for other in range(*ends[1])]
        assert found == sum(one != other and group(one) == group(other) for one, other in pairs)
