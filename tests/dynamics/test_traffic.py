"""Traffic, footprints and slowdowns of placements worked out by hand (docs/semantics.md, sections 3 to 5)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import list_paths
from jaxsched.cluster.hardware import Cluster, one_partition
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics import traffic
from jaxsched.dynamics.footprint import JobSpec, best_hardware, footprint, ideal_comm_s
from jaxsched.dynamics.interference import Interference, Strengths, default_interference, none
from jaxsched.dynamics.resources import layout_of, link_totals, with_links
from jaxsched.dynamics.speed import slowdown
from jaxsched.dynamics.traffic import placement_bytes, ring_bytes, ring_flows
from jaxsched.workload.models import Profiles

PCIE, QPI, NIC, LINK = 10.0, 20.0, 5.0, 8.0
B = 100.0  # gradient bytes


NONE = Interference(law=none, weights=None)


def make_cluster(racks=(0, 0, 1, 2), speed=1.0) -> Cluster:
    """One partition of four servers with two groups of 4 GPUs; links: up and down of each rack, 8 bytes/s each."""
    n, t = len(racks), max(racks) + 1
    route = np.zeros((1, t, t, 2 * t), np.float32)
    for r in range(t):
        for q in range(t):
            if r != q:
                route[0, r, q, [2 * r, 2 * q + 1]] = 1.0

    def full(value, *shape):
        return jnp.broadcast_to(jnp.asarray(value, jnp.float32), shape)

    return Cluster(
        group_gpus=jnp.full((1, n, 2), 4, jnp.int32),
        group_gpu_type=jnp.zeros((1, n, 2), jnp.int32),
        group_speed=full(speed, 1, n, 2),
        group_cores=full(8.0, 1, n, 2),
        pcie_bytes_s=full(PCIE, 1, n, 2),
        qpi_bytes_s=full(QPI, 1, n),
        nic_bytes_s=full(NIC, 1, n),
        reservable=jnp.ones((1, n, 2), jnp.int32),
        server_id=jnp.arange(n, dtype=jnp.int32)[None],
        server_rack=jnp.asarray(racks, jnp.int32)[None],
        rack_id=jnp.arange(t, dtype=jnp.int32)[None],
        domain_block=jnp.zeros((1, 0), jnp.int32),
        link_bytes_s=full(LINK, 2 * t + 1).at[-1].set(1.0),
        link_id=jnp.arange(2 * t, dtype=jnp.int32)[None],
        route=jnp.asarray(route),
        **list_paths(route),
        reference=jnp.int32(0),
    )


CLUSTER = make_cluster()
ONE = one_partition(CLUSTER, 0)  # without the P axis
LAYOUT = layout_of(CLUSTER)


def counts(**groups) -> jnp.ndarray:
    """`counts(a0=2, a5=1)`: int32[4, 2] with these numbers on groups 0 and 5."""
    out = np.zeros(8, np.int32)
    for name, value in groups.items():
        out[int(name[1:])] = value
    return jnp.asarray(out.reshape(4, 2))


def sent(workers, ps=None, g=1):
    """Bytes per step as NumPy arrays: PCIe[8], QPI[4], NIC[4], link[6]."""
    ps = counts() if ps is None else ps
    out = np.asarray(placement_bytes(ONE, workers, ps, jnp.int32(g), jnp.float32(B)))
    return np.split(out, np.cumsum([8, 4, 4]))


def profiles(**values) -> Profiles:
    """One model of 1 s compute and nothing else, but for `values`."""
    names = ("gradient_bytes", "cpu_cores", "ps_cores", "input_bytes", "sens_cpu", "sens_pcie")
    base = {"compute_s": 1.0} | {name: 0.0 for name in names} | values
    return Profiles(**{name: jnp.asarray([value], jnp.float32) for name, value in base.items()})


def spec(workers: int, g: int = 1, ps: int = 0) -> JobSpec:
    return JobSpec(workers=jnp.int32(workers), gpus_per_worker=jnp.int32(g), ps=jnp.int32(ps), model=jnp.int32(0))


def printed(prof, job, workers, ps=None, cluster=ONE, whole=CLUSTER):
    return footprint(cluster, best_hardware(whole), prof, job, workers, counts() if ps is None else ps)


# ----------------------------------------------------------------------------------------------------------- all-reduce


def test_ring_bytes():
    np.testing.assert_allclose(ring_bytes(B, jnp.array([0, 1, 2, 4, 8])), [0, 0, 100, 150, 175])


def test_ring_inside_a_group():
    pcie, qpi, nic, link = sent(counts(a1=4))
    np.testing.assert_allclose(pcie, [0, 150, 0, 0, 0, 0, 0, 0])
    assert not qpi.any() and not nic.any() and not link.any()


def test_ring_of_one_gpu_sends_nothing_and_of_one_worker_with_two_does():
    assert not any(part.any() for part in sent(counts(a1=1)))
    np.testing.assert_allclose(sent(counts(a1=1), g=2)[0][1], 100)


def test_ring_over_both_sockets():
    pcie, qpi, nic, link = sent(counts(a2=3, a3=1))
    np.testing.assert_allclose(pcie, [0, 0, 150, 150, 0, 0, 0, 0])
    np.testing.assert_allclose(qpi, [0, 150, 0, 0])
    assert not nic.any() and not link.any()


def test_ring_over_servers_of_a_rack():
    pcie, qpi, nic, link = sent(counts(a0=1, a2=1))
    np.testing.assert_allclose(pcie, [100, 0, 100, 0, 0, 0, 0, 0])
    assert not qpi.any() and not link.any()
    np.testing.assert_allclose(nic, [100, 100, 0, 0])


def test_ring_over_three_racks():
    # 2 GPUs a worker: 8 ranks, b = 175. Ring of racks 0 -> 1 -> 2 -> 0: up and down of each once.
    pcie, qpi, nic, link = sent(counts(a0=1, a1=1, a4=1, a7=1), g=2)
    np.testing.assert_allclose(pcie, [175, 175, 0, 0, 175, 0, 0, 175])
    np.testing.assert_allclose(qpi, [175, 0, 0, 0])
    np.testing.assert_allclose(nic, [175, 0, 175, 175])
    np.testing.assert_allclose(link, [175] * 6)
    # Two racks that are not neighbours: there and back.
    np.testing.assert_allclose(sent(counts(a0=1, a7=1))[3], [100, 100, 0, 0, 100, 100])


def test_ring_flows():
    flows = np.asarray(ring_flows(jnp.array([True, False, True, True])))
    assert {(int(t), int(u)) for t, u in np.argwhere(flows)} == {(0, 2), (2, 3), (3, 0)}
    assert not np.asarray(ring_flows(jnp.array([False, True, False]))).any()
    assert not np.asarray(ring_flows(jnp.zeros(3, bool))).any()
    assert not np.asarray(ring_flows(jnp.ones(1, bool))).any()


# ---------------------------------------------------------------------------------------------------- parameter servers


def test_ps_inside_a_group():
    pcie, qpi, nic, link = sent(counts(a1=3), counts(a1=2))
    np.testing.assert_allclose(pcie, [0, 300, 0, 0, 0, 0, 0, 0])
    assert not qpi.any() and not nic.any() and not link.any()


def test_ps_over_the_sockets():
    # 3 + 1 workers, PS 1 + 1: of 8 pairs 3 + 1 stay on their socket, 4 cross, each with B/2.
    pcie, qpi, nic, link = sent(counts(a0=3, a1=1), counts(a0=1, a1=1))
    np.testing.assert_allclose(pcie[:2], [300, 100])
    np.testing.assert_allclose(qpi, [200, 0, 0, 0])
    assert not nic.any() and not link.any()
    # A PS on the socket without workers: everything crosses.
    np.testing.assert_allclose(sent(counts(a0=3), counts(a1=1))[1], [300, 0, 0, 0])


def test_ps_over_servers():
    # Server 0: 3 workers; server 1: 1 worker, 1 PS. NIC 0: 3 pushes; NIC 1: 1 PS talks to 3 workers outside.
    pcie, qpi, nic, link = sent(counts(a0=3, a2=1), counts(a2=1))
    np.testing.assert_allclose(pcie[[0, 2]], [300, 100])
    np.testing.assert_allclose(nic, [300, 300, 0, 0])
    assert not qpi.any() and not link.any()
    # Two PS, one on each: NIC 0: 3 workers x 1 PS + 1 PS x 1 worker = 4 halves of B; NIC 1 the same.
    np.testing.assert_allclose(sent(counts(a0=3, a2=1), counts(a0=1, a2=1))[2], [200, 200, 0, 0])


def test_ps_over_racks():
    # Rack 0: 2 workers; rack 1: 1 worker, 1 PS; rack 2: 1 PS, no worker. B/2 = 50 per pair.
    # 0 <-> 1: 2 pairs each way, 0 <-> 2: 2, 1 <-> 2: 1.
    _, _, nic, link = sent(counts(a0=2, a4=1), counts(a4=1, a6=1))
    up0, down0, up1, down1, up2, down2 = link
    np.testing.assert_allclose([up0, down0], [50 * 4, 50 * 4])
    np.testing.assert_allclose([up1, down1], [50 * 3, 50 * 3])
    np.testing.assert_allclose([up2, down2], [50 * 3, 50 * 3])
    np.testing.assert_allclose(nic, [200, 0, 150, 150])


def test_every_byte_that_leaves_a_rack_goes_up_and_comes_down():
    rng = np.random.default_rng(0)
    for _ in range(20):
        w = jnp.asarray(rng.integers(0, 4, (4, 2)), jnp.int32)
        u = jnp.asarray(rng.integers(0, 3, (4, 2)), jnp.int32)
        for ps in (u, jnp.zeros_like(u)):
            _, _, nic, link = sent(w, ps)
            np.testing.assert_allclose(link[0::2].sum(), link[1::2].sum(), rtol=1e-5)
            if (np.asarray(ps) > 0).any():  # what crosses a rack's uplink passed its servers' NICs
                assert link[0] <= nic[0] + nic[1] + 1e-3


@pytest.mark.parametrize("name", ["torus3d-8", "dragonfly-8", "fat-tree-8", "leaf-spine-16"])
def test_routes_that_are_walked_pair_by_pair_carry_the_same(name, monkeypatch):
    one, rng = one_partition(get_cluster(name, 1), 0), np.random.default_rng(3)
    for case in range(4):
        w, u = rng.integers(0, 3, (2, *one.group_gpus.shape)) * (rng.random((2, *one.group_gpus.shape)) < 0.4)
        args = one, jnp.asarray(w), jnp.asarray(u * (case % 2)), jnp.int32(1), jnp.float32(B)
        monkeypatch.setattr(traffic, "AT_ONCE", 2**30)
        at_once = placement_bytes(*args)
        monkeypatch.setattr(traffic, "AT_ONCE", 0)
        np.testing.assert_allclose(placement_bytes(*args), at_once, rtol=1e-6, err_msg=f"{name}, {case}")
    assert np.asarray(at_once)[-one.route.shape[-1] :].any()


def test_split_routes_share_the_load():
    # Two equal paths instead of one: half on each.
    halves = jnp.concatenate([ONE.route, ONE.route], -1) / 2
    ids = jnp.arange(12, dtype=jnp.int32)
    split = ONE.replace(route=halves, link_id=ids, link_bytes_s=jnp.full(13, LINK / 2))
    w, u = counts(a0=2, a4=1, a6=1), counts()
    one = placement_bytes(ONE, w, u, jnp.int32(1), jnp.float32(B))
    two = placement_bytes(split, w, u, jnp.int32(1), jnp.float32(B))
    np.testing.assert_allclose(two[16:22], one[16:] / 2)
    np.testing.assert_allclose(two[22:], one[16:] / 2)


# ----------------------------------------------------------------------------------------------- footprint and slowdown


def test_footprint_of_a_ring():
    # Two servers of a rack: n = 2, b = 100: PCIe 10 s, NIC 20 s; compute 1 s. Solo 21 s. Input 30 bytes per GPU.
    out = printed(profiles(gradient_bytes=B, input_bytes=30.0, cpu_cores=2.0), spec(2), counts(a0=1, a2=1))
    np.testing.assert_allclose(out.base[LAYOUT.pcie.start - 8 :][:8], [10, 0, 10, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(np.asarray(out.base)[12:16], [20, 20, 0, 0])
    use = np.asarray(out.use)
    np.testing.assert_allclose(use[LAYOUT.cpu], [0.25, 0, 0.25, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(use[LAYOUT.pcie], np.array([13, 0, 13, 0, 0, 0, 0, 0]) / 21, rtol=1e-6)
    np.testing.assert_allclose(use[LAYOUT.nic], np.array([20, 20, 0, 0]) / 21, rtol=1e-6)
    assert not use[LAYOUT.qpi].any() and not use[LAYOUT.link].any()
    # Ideal: both on one group: 1 + 10.
    np.testing.assert_allclose(out.ideal, 11.0)


def test_own_cpu_oversubscription_slows_the_job_itself():
    # 4 GPUs x 6 cores on 8: use 3; with sens_cpu 0.5 compute is 1 + 0.5 * 2 = 2.
    prof = profiles(cpu_cores=6.0, sens_cpu=0.5)
    out = printed(prof, spec(4), counts(a0=4))
    np.testing.assert_allclose(out.use[0], 3.0)
    rate = slowdown(NONE, out, out.use)
    np.testing.assert_allclose(rate, 2.0)
    # PS take cores, too, also on a group without workers, where nothing is slowed by it.
    out = printed(profiles(ps_cores=16.0, sens_cpu=1.0), spec(1, ps=1), counts(a0=1), counts(a1=1))
    np.testing.assert_allclose(out.use[1], 2.0)
    np.testing.assert_allclose(slowdown(NONE, out, out.use), 1.0)


def test_the_slowest_gpu_sets_the_pace():
    speed = np.ones((1, 4, 2), np.float32)
    speed[0, 1, 0] = 0.25
    mixed = make_cluster(speed=speed)
    one = one_partition(mixed, 0)
    for workers, expected in ((counts(a0=2), 1.0), (counts(a0=1, a2=1), 4.0), (counts(a2=2), 4.0)):
        out = printed(profiles(), spec(2), workers, cluster=one, whole=mixed)
        np.testing.assert_allclose(slowdown(NONE, out, out.use), expected)


def test_two_jobs_on_one_nic():
    # Both over servers 0 and 1, on different groups: NIC 20 s of 21 s each. Stretch of the NIC: 1 + 20/21.
    prof = profiles(gradient_bytes=B)
    first = printed(prof, spec(2), counts(a0=1, a2=1))
    second = printed(prof, spec(2), counts(a1=1, a3=1))
    total = first.use + second.use
    rate = slowdown(default_interference(), first, total)
    np.testing.assert_allclose(rate, (1 + 20 * (1 + 20 / 21)) / 11, rtol=1e-6)
    np.testing.assert_allclose(slowdown(NONE, first, total), 21 / 11, rtol=1e-6)


def test_pcie_contention_stretches_compute_and_communication():
    # Two rings of two GPUs on one group: PCIe 10 s of 11; input 0. sens_pcie 0.3.
    prof = profiles(gradient_bytes=B, sens_pcie=0.3)
    job = printed(prof, spec(2), counts(a0=2))
    rate = slowdown(default_interference(), job, 2 * job.use)
    np.testing.assert_allclose(rate, (1 + 0.3 * 10 / 11 + 10 * (1 + 10 / 11)) / 11, rtol=1e-6)


def test_totals_share_links_between_partitions():
    two = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), CLUSTER.replace(link_bytes_s=None, reference=None))
    ids = jnp.array([[0, 1, 2, 3, 4, 5], [4, 5, 6, 6, 6, 6]], jnp.int32)  # 6: the dummy
    two = two.replace(link_bytes_s=CLUSTER.link_bytes_s, link_id=ids, reference=CLUSTER.reference)
    use = jnp.arange(2 * 3 * LAYOUT.size, dtype=jnp.float32).reshape(2, 3, LAYOUT.size)
    active = jnp.array([[True, False, True], [False, True, False]])
    own = jnp.einsum("prm,pr->pm", use, active)
    total = np.asarray(with_links(own, link_totals(two, own)))
    local = np.stack([np.asarray(use)[0, [0, 2]].sum(0), np.asarray(use)[1, 1]])
    np.testing.assert_allclose(total[:, : LAYOUT.link.start], local[:, : LAYOUT.link.start])
    links = local[:, LAYOUT.link]
    np.testing.assert_allclose(total[0, LAYOUT.link][:4], links[0, :4])
    np.testing.assert_allclose(total[0, LAYOUT.link][4:], links[0, 4:] + links[1, :2])
    np.testing.assert_allclose(total[1, LAYOUT.link][:2], links[0, 4:] + links[1, :2])


@pytest.mark.slow
@pytest.mark.parametrize("ps", [0, 2])
def test_gradients_are_finite(ps):
    """With respect to every capacity, strength and profile, empty groups and unused links included."""
    job = spec(4, ps=ps)
    where = counts(a0=2, a5=2), counts(a5=ps)

    def loss(cluster, kappa, prof):
        one = one_partition(cluster, 0)
        out = footprint(one, best_hardware(cluster), prof, job, *where)
        interference = default_interference().replace(weights=Strengths(kappa=kappa))
        return jnp.log(slowdown(interference, out, 2 * out.use + 0.1))

    prof = profiles(gradient_bytes=B, input_bytes=3.0, cpu_cores=5.0, ps_cores=1.0, sens_cpu=0.5, sens_pcie=0.2)
    gradient = jax.grad(loss, argnums=(0, 1, 2), allow_int=True)(CLUSTER, jnp.ones(5), prof)
    floats = [leaf for leaf in jax.tree.leaves(gradient) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in floats)
    assert (np.asarray(gradient[1]) > 0).any() and float(gradient[0].link_bytes_s.sum()) <= 0


# ---------------------------------------------------------------------------------------------------------------- ideal


def test_ideal_steps_by_hand():
    best, prof = best_hardware(CLUSTER), profiles(gradient_bytes=B)
    for job, expected in (
        (spec(1), 1.0),
        (spec(2), 1 + 100 / PCIE),
        (spec(8), 1 + 175 / PCIE),  # both sockets: QPI 175/20 is faster than PCIe
        (spec(16), 1 + 187.5 / NIC),  # two servers
        (spec(4, g=4), 1 + 187.5 / NIC),
        (spec(4, ps=1), 1 + 400 / PCIE),
        (spec(8, ps=2), 1 + 400 / PCIE),  # QPI: 8 B / 2 = 400 bytes at twice the rate
        (spec(16, ps=2), 1 + 800 / NIC),  # 2 B 16 / 2 / 2
    ):
        np.testing.assert_allclose(prof.compute_s[job.model] + ideal_comm_s(best, prof, job), expected, rtol=1e-6)


def test_padding_is_not_the_best_hardware():
    padded = CLUSTER.replace(
        group_gpus=CLUSTER.group_gpus.at[0, 3].set(0), nic_bytes_s=CLUSTER.nic_bytes_s.at[0, 3].set(99.0)
    )
    best = best_hardware(padded)
    assert (float(best.nic_bytes_s), int(best.server_gpus), int(best.groups)) == (NIC, 8, 2)
