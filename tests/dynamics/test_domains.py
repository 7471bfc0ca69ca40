"""NVLink domains: what lies on NVLink and NICs, by hand and by the oracle (docs/semantics.md, sections 3 and 5)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.hardware import one_partition
from jaxsched.dynamics.footprint import JobSpec, best_hardware, footprint, ideal_comm_s
from jaxsched.dynamics.resources import comm_capacity
from jaxsched.workload.patterns import make_table
from tests.oracle import contention
from tests.oracle.cases import RACKS, make_cluster, make_jobs, make_profiles
from tests.oracle.cluster import Hardware, read_jobs
from tests.oracle.filling import ps_of
from tests.support.plans import patterns, random_patterns

LINKS = {"links": (1.0,) * 6, "link_id": [range(6)], "route": RACKS[:1]}
# Two domains of two servers of 4 GPUs, and a server that is in none.
FIVE = make_cluster([[[4]] * 5], racks=[[0, 0, 1, 1, 2]], blocks=[[2, 2, 0]], pcie=1, qpi=1, nic=1, **LINKS)


@jax.jit
def sent(cluster, profiles, workers, ps, job):
    """Bytes on every wire of partition 0, and the communication of the ideal placement."""
    one, best = one_partition(cluster, 0), best_hardware(cluster)
    print_ = footprint(one, best, profiles, job, workers, ps)
    return print_.base * comm_capacity(one), ideal_comm_s(best, profiles, job)


def wires(cluster, profiles, lies, g=1, ps=0):
    """By name, and the ideal; of the oracle the same, which must be equal."""
    hw, w = Hardware(cluster), {a: int(x) for a, x in enumerate(np.reshape(lies, -1)) if x}
    job = read_jobs(make_jobs({"W": sum(w.values()), "g": g, "U": ps}), profiles)[0]
    u = ps_of(job, w)
    there = np.zeros(hw.N * hw.K, np.int32)
    there[list(u)] = list(u.values())
    names = ("workers", "gpus_per_worker", "ps", "model")
    spec = JobSpec(**dict(zip(names, map(jnp.int32, (job.W, g, ps, 0)))))
    shape = (hw.N, hw.K)
    found, ideal = sent(cluster, profiles, jnp.reshape(jnp.asarray(lies, jnp.int32), shape), there.reshape(shape), spec)
    wanted = contention.traffic(hw, 0, job, w, u)
    servers, groups = range(hw.N), range(hw.N * hw.K)
    names = [("pcie", 0, a) for a in groups] + [("qpi", 0, s) for s in servers] + [("nic", 0, s) for s in servers]
    names += [("link", int(e)) for e in hw.link_id[0]]
    np.testing.assert_allclose(found, [wanted.get(name, 0.0) for name in names], rtol=1e-5)
    np.testing.assert_allclose(ideal, contention.ideal_comm(hw, job), rtol=1e-5)
    parts = np.split(np.asarray(found), np.cumsum([len(groups), hw.N, hw.N]))
    return dict(zip(("pcie", "nvlink", "nic", "link"), parts)), float(ideal)


def test_a_ring_crosses_nvlink_inside_a_domain_and_all_its_nics_outside():
    ring = make_profiles({"gradient_bytes": 100})
    inside, ideal = wires(FIVE, ring, [4, 4, 0, 0, 0])
    b = 2 * 7 / 8 * 100
    assert inside["nvlink"].tolist() == [b, b, 0, 0, 0] and not inside["nic"].any() and not inside["link"].any()
    assert ideal == b  # over NVLink of 1 byte/s
    outside, ideal = wires(FIVE, ring, [4, 4, 4, 4, 0])
    b = 2 * 15 / 16 * 100
    assert outside["nvlink"].tolist() == [b, b, b, b, 0] and outside["nic"].tolist() == [b / 2] * 4 + [0]
    assert outside["link"].tolist() == [b] * 4 + [0, 0] and ideal == b
    alone, _ = wires(FIVE, ring, [0, 0, 4, 0, 4])
    assert not alone["nvlink"].any() and alone["nic"].tolist() == [0, 0, 2 * 7 / 8 * 100, 0, 2 * 7 / 8 * 100]


def test_tensor_groups_of_a_domain_stay_off_the_nics():
    """Tensor groups of 8 on two domains: 16 ranks, each server sends one message to the other of its domain."""
    plan = make_profiles({}).replace(plans=make_table([patterns(tensor=8, data=2, nbytes=(10, 3, 0, 0, 0))]))
    found, ideal = wires(FIVE, plan, [4, 4, 4, 4, 0])
    assert found["nvlink"].tolist() == [10, 10, 10, 10, 0] and found["nic"].tolist() == [4 * 3] * 4 + [0]
    assert ideal == 22  # what leaves a group: a tensor message, and four of gradients
    apart, _ = wires(FIVE, plan, [4, 0, 4, 4, 4])  # ranks 0 to 3 alone, 4 to 11 in a domain, 12 to 15 alone
    assert apart["nic"].tolist() == [22, 0, 22, 22, 22] and not apart["nvlink"].any()


def test_a_domain_that_sums_up_first_leaves_by_all_its_nics():
    """A ring leaves a domain where its last rank lies; what 8 ranks have summed up, two trays send half of."""
    spread = [4, 4, 4, 4, 0]
    ring, _ = wires(
        FIVE, make_profiles({}).replace(plans=make_table([patterns(data=16, nbytes=(0, 80, 0, 0, 0))])), spread
    )
    assert ring["nic"].tolist() == [0, 80, 0, 80, 0]
    for tree in (False, True):  # of two domains both are one edge
        plan = make_table([patterns(data=16, summed=(80, 0), tree=tree)])
        found, ideal = wires(FIVE, make_profiles({}).replace(plans=plan), spread)
        assert found["nvlink"].tolist() == [2 * 7 / 8 * 80] * 4 + [0] and found["nic"].tolist() == [40] * 4 + [0]
        assert set(found["link"][:4].tolist()) == {80} and not found["link"][4:].any()
        assert ideal == 2 * 7 / 8 * 80 + 40  # over PCIe of 1 byte/s


def test_parameter_servers_of_a_domain_are_reached_by_nvlink():
    loud = make_profiles({"gradient_bytes": 8})
    found, _ = wires(FIVE, loud, [1, 1, 1, 1, 0], ps=4)
    assert found["nvlink"].tolist() == [4, 4, 4, 4, 0] and found["nic"].tolist() == [8, 8, 8, 8, 0]


def random_case(rng: np.random.Generator):
    """Six servers in three racks in any order, some of them domains, what a job sends, and where it lies."""
    gpus = rng.integers(1, 7, (1, 6, 2))
    racks, blocks = rng.integers(0, 3, (1, 6)), rng.integers(0, 4, (1, 3))
    racks[0, 5] = 2
    gpus[0, blocks[0, racks[0]] > 0, 1] = 0
    cluster = make_cluster(gpus, racks=racks, blocks=blocks, **LINKS, pcie=50, qpi=30, nic=5)
    count = int(rng.integers(1, gpus.sum() + 1))
    lies = np.zeros(gpus.size, int)
    np.add.at(lies, rng.permutation(np.repeat(np.arange(gpus.size), gpus.reshape(-1)))[:count], 1)
    profiles, ps = make_profiles({"gradient_bytes": 100}), int(rng.integers(0, 4))
    if rng.random() < 0.6:
        profiles, ps = make_profiles({}).replace(plans=make_table([random_patterns(rng, count, 1, 50)])), 0
    return cluster, profiles, lies, ps


def check_cases(numbers) -> None:
    for number in numbers:
        cluster, profiles, lies, ps = random_case(np.random.default_rng(number))
        wires(cluster, profiles, lies, ps=ps)


@pytest.mark.slower
def test_what_wires_carry_is_the_oracles():
    check_cases(range(80))


@pytest.mark.long
def test_what_wires_carry_is_the_oracles_in_many_cases():
    check_cases(range(1000, 2500))
