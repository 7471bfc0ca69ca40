"""What the ranks of a plan send, counted and by hand (docs/semantics.md, section 3, "Plans")."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.hardware import one_partition
from jaxsched.dynamics.footprint import JobSpec, best_hardware, footprint, ideal_comm_s
from jaxsched.dynamics.resources import comm_capacity
from jaxsched.dynamics.traffic import placement_bytes
from jaxsched.event_loop._kernel.ideal import build_plans
from jaxsched.event_loop._kernel.plans import count_bytes_between, count_bytes_out
from jaxsched.workload.patterns import Patterns, make_table
from tests.oracle import contention, plans
from tests.oracle.cases import RACKS, make_cluster, make_jobs, make_profiles
from tests.oracle.cluster import Hardware, read_jobs
from tests.support.plans import patterns, random_patterns


def with_plan(plan: Patterns, **model):
    return make_profiles(model).replace(plans=make_table([plan]))


@jax.jit
def sent(cluster, profiles, workers, g):
    """Seconds on every wire of partition 0, times what it carries."""
    one = one_partition(cluster, 0)
    job = JobSpec(workers=workers.sum(), gpus_per_worker=g, ps=jnp.int32(0), model=jnp.int32(0))
    best = best_hardware(cluster)
    print_ = footprint(one, best, profiles, job, workers, jnp.zeros_like(workers))
    return print_.base * comm_capacity(one), ideal_comm_s(best, profiles, job), print_.ideal


def of_oracle(cluster, profiles, workers, g):
    """The same by the oracle: bytes as of `sent`, and the communication of the ideal placement."""
    hw, w = Hardware(cluster), {int(a): int(x) for a, x in enumerate(workers.reshape(-1)) if x}
    job = read_jobs(make_jobs({"W": int(workers.sum()), "g": g}), profiles)[0]
    found = contention.traffic(hw, 0, job, w, {})
    servers, groups = range(hw.N), range(hw.N * hw.K)
    wires = [("pcie", 0, a) for a in groups] + [("qpi", 0, s) for s in servers] + [("nic", 0, s) for s in servers]
    wires += [("link", int(e)) for e in hw.link_id[0]]
    return [found.get(wire, 0.0) for wire in wires], contention.ideal_comm(hw, job)


# ------------------------------------------------------------------------------------------------------------- by hand
LINKS = {"links": (1.0,) * 6, "link_id": [range(6)], "route": RACKS[:1]}
FOUR = make_cluster([[[4, 4], [4, 4], [4, 4]]], racks=[[0, 1, 2]], **LINKS)
FULL = np.full((3, 2), 4)


def wires_of(plan: Patterns, workers) -> dict[str, np.ndarray]:
    found = np.asarray(sent(FOUR, with_plan(plan), jnp.asarray(workers, jnp.int32), jnp.int32(1))[0])
    return dict(zip(("pcie", "qpi", "nic", "link"), np.split(found, [6, 9, 12])))


def test_replicas_alone_are_the_ring_of_a_job_without_a_plan():
    one = one_partition(FOUR, 0)
    few = [[2, 0], [0, 1], [1, 4]], [[4, 4], [0, 0], [0, 0]], [[0, 0], [0, 3], [0, 0]], [[1, 0], [0, 0], [0, 0]]
    for workers in (FULL, *few):
        w = jnp.asarray(workers, jnp.int32)
        n = int(w.sum())
        ring = np.asarray(placement_bytes(one, w, jnp.zeros_like(w), jnp.int32(1), jnp.float32(100.0)))
        found = wires_of(patterns(data=n, nbytes=(0, 2 * (n - 1) / n * 100, 0, 0, 0)), workers)
        np.testing.assert_allclose(np.concatenate(list(found.values())), ring, rtol=1e-6)


def test_tensor_groups_inside_a_group_send_nothing():
    found = wires_of(patterns(tensor=4, data=6, nbytes=(10, 0, 0, 0, 0)), FULL)
    assert all((x == 0).all() for x in found.values())


def test_tensor_groups_across():
    """Groups of 8 lie in a server and cross QPI once; of 6, the second lies on two servers: ranks 6 to 11."""
    found = wires_of(patterns(tensor=8, data=3, nbytes=(10, 0, 0, 0, 0)), FULL)
    assert found["qpi"].tolist() == [10, 10, 10] and not found["nic"].any() and found["pcie"].tolist() == [10] * 6
    found = wires_of(patterns(tensor=6, data=4, nbytes=(10, 0, 0, 0, 0)), FULL)
    assert found["nic"].tolist() == [10, 20, 10]
    assert found["link"].tolist() == [10, 10, 20, 20, 10, 10]


def test_rings_of_gradients_share_a_nic():
    """4 rings, each with one rank in every group of 4: all four cross wherever they go."""
    found = wires_of(patterns(tensor=4, data=6, nbytes=(0, 10, 0, 0, 0)), FULL)
    assert {name: set(x.tolist()) for name, x in found.items()} == {name: {40} for name in found}


def test_stages_send_to_their_neighbours():
    """Three stages of 8 ranks, one to a server: the middle one sends to both sides."""
    found = wires_of(patterns(tensor=4, data=2, pipeline=3, nbytes=(0, 0, 0, 10, 0)), FULL)
    assert found["nic"].tolist() == [80, 160, 80] and not found["qpi"].any()
    assert found["link"].tolist() == [80, 80, 160, 160, 80, 80]


def test_all_to_all_is_what_crosses_a_bisection():
    """24 ranks exchange: a rack of 8 sends 8 * 16 messages out, 8 * 8 to each of the others."""
    found = wires_of(patterns(data=24, expert=24, nbytes=(0, 0, 0, 0, 10)), FULL)
    assert found["nic"].tolist() == [8 * 16 * 10] * 3 and found["link"].tolist() == [8 * 16 * 10] * 6
    assert found["qpi"].tolist() == [4 * 4 * 10] * 3 and found["pcie"].tolist() == [4 * 20 * 10] * 6


# ------------------------------------------------------------------------------------------------------- by the oracle
def random_case(rng: np.random.Generator):
    """A cluster of four servers in racks in any order, a plan, and a placement of its ranks."""
    gpus = rng.integers(0, 7, (1, 4, 3))
    gpus[:, :, rng.integers(1, 4) :] = 0
    gpus[0, 0, 0] += 1
    racks = rng.integers(0, 3, (1, 4))
    racks[0, rng.integers(4)] = 2
    cluster = make_cluster(gpus, racks=racks, **LINKS, pcie=10, qpi=7, nic=5)
    plan = random_patterns(rng, int(rng.integers(1, gpus.sum() + 1)), 1, 50)
    lies = np.zeros(gpus.size, int)
    np.add.at(lies, rng.permutation(np.repeat(np.arange(gpus.size), gpus.reshape(-1)))[: plan.gpus], 1)
    return cluster, plan, lies.reshape(4, 3)


def check_cases(numbers) -> None:
    for number in numbers:
        cluster, plan, lies = random_case(np.random.default_rng(number))
        profiles = with_plan(plan)
        found, ideal, whole = sent(cluster, profiles, jnp.asarray(lies, jnp.int32), jnp.int32(1))
        wanted, comm = of_oracle(cluster, profiles, lies, 1)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=f"case {number}: {plan}, {lies.tolist()}")
        np.testing.assert_allclose(ideal, comm, rtol=1e-5, err_msg=f"case {number}")
        np.testing.assert_allclose(whole, 1 + comm, rtol=1e-5)


def test_counts_are_those_of_the_ranks():
    check_cases(range(60))


@pytest.mark.long
def test_counts_are_those_of_the_ranks_in_many_cases():
    check_cases(range(1000, 2500))


def test_workers_of_several_gpus_hold_ranks_side_by_side():
    plan = patterns(tensor=2, data=2, pipeline=2, nbytes=(3, 5, 0, 7, 0))
    lies = np.array([[1, 0], [0, 2], [1, 0]])
    found, _, _ = sent(FOUR, with_plan(plan), jnp.asarray(lies, jnp.int32), jnp.int32(2))
    np.testing.assert_allclose(found, of_oracle(FOUR, with_plan(plan), lies, 2)[0], rtol=1e-6)


def sum_bytes(messages, source, target) -> float:
    return sum(x for i, k, x in messages if i in source and k in target)


def test_counts_of_the_loop_between_intervals():
    """Bytes from one interval to another one, and out of one that lies in another, message by message."""
    rng = np.random.default_rng(3)
    for gpus in (1, 6, 8, 12, 24, 32, 48, 64):
        profiles = with_plan(random_patterns(rng, gpus, 1, 50, rings=True))
        messages = plans.read_traffic(profiles, 0).messages([0] * gpus)
        w = SimpleNamespace(plans=build_plans(profiles.plans))
        for _ in range(20):
            a, b, c, d = (int(x) for x in np.sort(rng.integers(0, gpus + 1, 4)))
            for x, y, u, v in ((a, b, c, d), (c, d, a, b)):
                found = count_bytes_between(w, 0, x, y, u, v)
                assert found == pytest.approx(sum_bytes(messages, range(x, y), range(u, v)), rel=1e-6)
            outside = [i for i in range(gpus) if not a <= i < d]
            found, _ = count_bytes_out(w, 0, b, c, a, d)
            assert found == pytest.approx(sum_bytes(messages, range(b, c), outside), rel=1e-6)


def test_messages_of_the_oracle_go_both_ways_alike():
    """What a server sends it receives: one figure a wire is enough."""
    for number in range(40):
        cluster, plan, lies = random_case(np.random.default_rng(number))
        traffic = plans.read_traffic(with_plan(plan), 0)
        w = {a: int(x) for a, x in enumerate(lies.reshape(-1)) if x}
        _, server, domain, _ = plans.placed(traffic, Hardware(cluster), 0, w, 1)
        out, back = np.zeros(4), np.zeros(4)
        for i, k, nbytes in traffic.messages(domain):
            if server[i] != server[k]:
                out[server[i]] += nbytes
                back[server[k]] += nbytes
        np.testing.assert_allclose(out, back)
