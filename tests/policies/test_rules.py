"""Each placement rule does what its name says, on partitions small enough to see it (docs/semantics.md, section 7)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.hardware import one_partition
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import TOPOLOGIES
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.batching import PATHS, traced_for
from jaxsched.dynamics.footprint import JobSpec
from jaxsched.dynamics.resources import layout_of
from jaxsched.policies.candidates import list_anchors, list_candidates
from jaxsched.policies.filling import PAIRS, fill_in_order, fill_one_by_one, fill_servers_in_order, place_ps, quantise
from jaxsched.policies.rules import RULES, View
from jaxsched.workload.models import MODEL_NAMES, profiles

# Three racks of two servers of two groups of 4 GPUs: groups 0..11, servers 0..5, racks 0..2.
CLUSTER = build([Server()] * 6, leaf_spine(6, servers_per_rack=2), 1)
ONE = one_partition(CLUSTER, 0)
LAYOUT = layout_of(CLUSTER)
FULL = [4] * 12
NO_SETS = jnp.zeros((0, len(FULL)), bool)


def view(free=None, **use) -> View:
    """A partition with these free GPUs per group and this total use: `cpu={0: 0.5}`, by group, server or link."""
    total = np.zeros(LAYOUT.size, np.float32)
    for channel, values in use.items():
        part = getattr(LAYOUT, channel)
        for index, value in values.items():
            total[part.start + index] = value
    return View(
        cluster=ONE,
        free=jnp.asarray(FULL if free is None else free, jnp.int32),
        total=jnp.asarray(total),
        profiles=profiles(),
        room=jnp.zeros(len(FULL), jnp.int32),
        usable=NO_SETS,
        spare=jnp.zeros((6, 0), jnp.int32),
    )


def job(workers: int, g: int = 1, ps: int = 0, model: str = "resnet50") -> JobSpec:
    return JobSpec(
        workers=jnp.int32(workers),
        gpus_per_worker=jnp.int32(g),
        ps=jnp.int32(ps),
        model=jnp.int32(MODEL_NAMES.index(model)),
    )


_COMPILED = {name: jax.jit(rule) for name, rule in RULES.items()}


def place(name: str, seen: View, wanted: JobSpec, seed: int = 0) -> dict[int, int]:
    """Workers per group."""
    workers = np.asarray(_COMPILED[name](jax.random.key(seed), seen, wanted))
    return {int(a): int(workers[a]) for a in np.flatnonzero(workers)}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_places_the_whole_gang_within_capacity(name):
    rng = np.random.default_rng(3)
    for trial in range(60):
        free = rng.integers(0, 5, 12)
        g = int(rng.choice([1, 2, 4]))
        most = int((free // g).sum())
        if not most:
            continue
        sizes = {"cpu": 12, "pcie": 12, "qpi": 6, "nic": 6}
        use = {part: dict(enumerate(rng.uniform(0, 2, size))) for part, size in sizes.items()}
        wanted = job(int(rng.integers(1, most + 1)), g, int(rng.integers(0, 3)), str(rng.choice(MODEL_NAMES)))
        placed = place(name, view(free, **use), wanted, trial)
        assert sum(placed.values()) == int(wanted.workers)
        assert all(x * g <= free[a] for a, x in placed.items())


def test_first_fit():
    assert place("first-fit", view([0, 1, 3] + [4] * 9), job(5)) == {1: 1, 2: 3, 3: 1}
    assert place("first-fit", view([1, 3, 4] + [4] * 9), job(2, g=2)) == {1: 1, 2: 1}


def test_pack_takes_the_tightest_container():
    free = [4, 4, 2, 4, 3, 4, 4, 4, 4, 4, 4, 4]
    assert place("pack", view(free), job(2)) == {2: 2}  # the group that just fits
    assert place("pack", view(free), job(3)) == {4: 3}
    assert place("pack", view(free), job(6)) == {2: 2, 3: 4}  # a server: the one with 6
    assert place("pack", view(free), job(7)) == {4: 3, 5: 4}
    # A rack: rack 0 has 14; in it the emptiest server first.
    assert place("pack", view(free), job(14)) == {0: 4, 1: 4, 2: 2, 3: 4}
    assert place("pack", view(free), job(15)) == {6: 4, 7: 4, 4: 3, 5: 4}  # rack 1
    assert sum(place("pack", view(free), job(20)).values()) == 20  # the partition
    # Ties by index.
    assert place("pack", view(), job(1)) == {0: 1}
    assert place("pack", view(), job(8)) == {0: 4, 1: 4}


def test_load_balance_spreads():
    assert place("load-balance", view(), job(6)) == {0: 1, 2: 1, 4: 1, 6: 1, 8: 1, 10: 1}
    # Server 0 half used: not before the others are.
    assert place("load-balance", view([2, 2] + [4] * 10), job(5)) == {2: 1, 4: 1, 6: 1, 8: 1, 10: 1}
    # Inside a server, the group with most free GPUs.
    assert place("load-balance", view([1, 3] + [0] * 10), job(2)) == {1: 2}


def test_tetris_aligns_demand_with_what_is_free():
    # All the same: fuller GPU groups score less, so that it starts on an empty one.
    assert place("tetris", view([2] + [4] * 11), job(1)) == {1: 1}
    # A CPU-hungry job avoids busy CPUs, a network-hungry one busy NICs.
    assert place("tetris", view(cpu={a: 0.9 for a in range(11)}), job(1, model="textcnn")) == {11: 1}
    assert place("tetris", view(nic={s: 0.9 for s in (0, 1, 2, 4, 5)}), job(2, model="vgg16")) == {6: 1, 7: 1}
    assert place("tetris", view(pcie={a: 0.9 for a in range(1, 12)}), job(1, model="resnet18")) == {0: 1}


@pytest.mark.parametrize("channel", ["cpu", "pcie"])
def test_least_interference_avoids_busy_groups(channel):
    busy = {a: 0.5 for a in range(12) if a != 7}
    assert place("least-interference", view(**{channel: busy}), job(2)) == {7: 2}


@pytest.mark.parametrize("channel", ["qpi", "nic"])
def test_least_interference_avoids_busy_servers(channel):
    busy = {s: 0.5 for s in range(6) if s != 4}
    assert place("least-interference", view(**{channel: busy}), job(6)) == {8: 4, 9: 2}


def test_contention_aware_is_local_and_calm():
    # A group that fits, the calmest: not one where the CPU, its server's NIC or QPI is busy.
    busy = view(cpu={0: 0.9}, nic={1: 0.5}, qpi={2: 0.5}, pcie={6: 0.1})
    assert place("contention-aware", busy, job(3)) == {1: 3}
    # A server that fits, the calmest, its groups in order.
    assert place("contention-aware", busy, job(6)) == {8: 4, 9: 2}
    # Rack 2 has the idlest NICs; in it the idler server first.
    nics = view(nic={0: 0.4, 1: 0.4, 2: 0.3, 3: 0.4, 4: 0.2, 5: 0.1})
    assert place("contention-aware", nics, job(10)) == {10: 4, 11: 4, 8: 2}
    # Partition: by NIC.
    assert place("contention-aware", nics, job(20)) == {10: 4, 11: 4, 8: 4, 9: 4, 4: 4}


def test_random_is_random_and_uniform():
    draws = [tuple(place("random", view(), job(1), seed)) for seed in range(600)]
    counts = np.bincount([a for (a,) in draws], minlength=12)
    assert counts.min() > 25 and counts.max() < 80  # 50 expected, four standard deviations


# ----------------------------------------------------------------------------------------------------------- the pieces


def test_quantise():
    values = [0.0, 0.000876, 0.000878, 1.0, -3.0, 2e6, np.nextafter(np.float32(0.1), 0), 0.1]
    np.testing.assert_array_equal(quantise(jnp.asarray(values, jnp.float32)), [0, 0, 1, 1000, 0, 10**9, 100, 100])


@pytest.mark.parametrize("span", [1, 3, 2**31 - 2])
def test_fill_in_order_is_the_order_of_a_stable_sort(span):
    rng = np.random.default_rng(span)
    for size in (1, 2, 9, PAIRS, PAIRS + 1, 150) * 6:
        key = (rng.integers(0, span, size, endpoint=True) - (5 if span < 9 else 0)).astype(np.int32)
        capacity, need = rng.integers(0, 4, size).astype(np.int32), rng.integers(0, 2 * size)
        expected = np.zeros(size, np.int32)
        for group in np.argsort(key, kind="stable"):
            expected[group] = min(capacity[group], need - expected.sum())
        filled = fill_in_order(jnp.array(key), jnp.array(capacity), jnp.int32(need))
        np.testing.assert_array_equal(filled, expected)


@pytest.mark.parametrize("path", PATHS)
def test_fill_servers_in_order_is_fill_in_order_with_keys_of_servers(path):
    rng = np.random.default_rng(3)
    for servers, groups in ((1, 4), (16, 2), (60, 3)):
        key = rng.integers(0, 5, servers).astype(np.int32)
        capacity = rng.integers(0, 4, servers * groups).astype(np.int32)
        for need in (0, 1, int(capacity.sum()) // 2, int(capacity.sum()) + 3):
            expected = fill_in_order(jnp.repeat(jnp.array(key), groups), jnp.array(capacity), jnp.int32(need))
            with traced_for(path):
                filled = fill_servers_in_order(jnp.array(key), jnp.array(capacity), jnp.int32(need))
            np.testing.assert_array_equal(filled, expected)


def test_fill_in_order():
    filled = fill_in_order(jnp.array([2, 1, 1, 0]), jnp.array([5, 1, 2, 0]), jnp.int32(4))
    np.testing.assert_array_equal(filled, [1, 1, 2, 0])
    np.testing.assert_array_equal(fill_in_order(jnp.zeros(3, jnp.int32), jnp.array([1, 1, 1]), jnp.int32(9)), [1, 1, 1])


def test_fill_one_by_one():
    # The key is the count: round robin; then whatever has capacity left. It ends, also when the gang does not fit.
    filled = fill_one_by_one(lambda counts: counts, jnp.array([1, 3, 2]), jnp.int32(5))
    np.testing.assert_array_equal(filled, [1, 2, 2])
    np.testing.assert_array_equal(fill_one_by_one(lambda counts: counts, jnp.array([1, 0]), jnp.int32(5)), [1, 0])


def test_ps_follow_the_workers():
    assert place_ps(jnp.array([3, 0, 1]), jnp.int32(4)).tolist() == [3, 0, 1]
    assert place_ps(jnp.array([3, 0, 1]), jnp.int32(1)).tolist() == [0, 0, 1]
    assert place_ps(jnp.array([2, 2]), jnp.int32(3)).tolist() == [1, 2]
    assert place_ps(jnp.array([2, 2]), jnp.int32(0)).tolist() == [0, 0]
    rng = np.random.default_rng(0)
    for _ in range(50):
        workers, ps = rng.integers(0, 4, 6), int(rng.integers(0, 9))
        workers[rng.integers(6)] += 1
        out = np.asarray(place_ps(jnp.asarray(workers), jnp.int32(ps)))
        assert out.sum() == ps and (out >= 0).all() and (out[workers == 0] == 0).all()


# ----------------------------------------------------------------------------------------------------------- candidates

_candidates = jax.jit(list_candidates)


def menu(seen: View, wanted: JobSpec):
    """The valid candidates as tuples, and their indices."""
    workers, valid = map(np.asarray, _candidates(seen, wanted))
    assert len(valid) == 24
    return workers, np.flatnonzero(valid)


def test_candidates_are_whole_gangs_within_capacity():
    rng = np.random.default_rng(1)
    for _ in range(60):
        free = rng.integers(0, 5, 12)
        g = int(rng.choice([1, 2, 4]))
        most = int((free // g).sum())
        if not most:
            continue
        wanted = job(int(rng.integers(1, most + 1)), g)
        workers, valid = menu(view(free, cpu=dict(enumerate(rng.uniform(0, 2, 12)))), wanted)
        assert len(valid)  # a feasible job always has one
        for c in valid:
            assert workers[c].sum() == int(wanted.workers) and (workers[c] >= 0).all()
            assert (workers[c] * g <= free).all()
            if c % 3:
                cap = (1024, 2, 1)[c % 3]
                assert workers[c].max() <= cap < int(wanted.workers)


def test_candidates_have_distinct_anchors():
    # Four tightest servers, then the others by pressure. W = 3 on one server: every anchor another server.
    seen = view([4, 4, 2, 1, 4, 0, 3, 0, 4, 4, 4, 2], cpu={0: 0.9, 8: 0.1})
    workers, valid = menu(seen, job(3))
    uncapped = [workers[c] for c in valid if c % 3 == 0]
    servers = [int(np.flatnonzero(w)[0] // 2) for w in uncapped]
    assert servers == [1, 3, 2, 5, 4, 0]
    # Where every group could hold the gang, every candidate is another placement: six anchors, three caps.
    workers, valid = menu(view(), job(3))
    assert len(valid) == 18 == len({tuple(workers[c]) for c in valid})
    # A cap that does not bind is no option.
    assert len(menu(view(), job(2))[1]) == 12 and len(menu(view(), job(1))[1]) == 6


def test_candidates_prefer_the_anchors_rack():
    workers, valid = menu(view([0, 4] + [4, 0] + [4, 4] * 4), job(6))
    for c in valid:
        if c % 3 == 0 and workers[c][:4].any():  # rack 0 holds 8
            assert workers[c][:4].sum() == 6
    # A cap of one worker per group: 6 groups, the anchor's rack first.
    spread = workers[next(c for c in valid if c % 3 == 2)]
    assert spread.max() == 1 and (spread > 0).sum() == 6


def test_small_partitions_have_fewer_anchors():
    small = build([Server()] * 2, leaf_spine(2), 1)
    one = one_partition(small, 0)
    size = layout_of(small).size
    free, full = jnp.array([4, 4, 4, 4]), jnp.zeros(4, jnp.int32)
    sets = jnp.zeros((0, 4), bool)
    none = {"usable": sets, "spare": jnp.zeros((2, 0), jnp.int32)}
    seen = View(cluster=one, free=free, total=jnp.zeros(size), profiles=profiles(), room=full, **none)
    workers, valid = map(np.asarray, jax.jit(list_candidates)(seen, job(2)))
    expected = [(2, 0, 0, 0), (1, 1, 0, 0), (0, 0, 2, 0), (0, 0, 1, 1)]
    assert [tuple(workers[c]) for c in np.flatnonzero(valid)] == expected


@pytest.mark.parametrize("workers", [3, 5, 11])
def test_in_a_row_are_gangs_that_the_anchor_does_not_hold(workers):
    grid = build([Server()] * 6, TOPOLOGIES["torus2d"](6), 1)
    rng = np.random.default_rng(workers)
    for _ in range(10):
        free = rng.integers(1, 5, 12)
        seen = view(free).replace(cluster=one_partition(grid, 0), total=jnp.zeros(layout_of(grid).size))
        anchors = np.asarray(jax.jit(list_anchors)(seen, job(workers)))
        counts, valid = map(np.asarray, _candidates(seen, job(workers)))
        assert counts.shape == (8 * 6, 12)
        for c, (a, way) in enumerate(np.ndindex(8, 6)):
            cap = (1024, 2, 1)[way % 3]
            capped = np.minimum(free, cap)
            binds = cap == 1024 or cap < workers
            fits = anchors[a] >= 0 and binds and capped.sum() >= workers
            if way < 3:
                assert valid[c] == fits
                continue
            here = capped[2 * anchors[a] : 2 * anchors[a] + 2].sum()
            assert valid[c] == (fits and here < workers)
            if valid[c]:
                left, expected = workers, np.zeros(12, int)
                for group in (np.arange(12) + 2 * anchors[a]) % 12:
                    expected[group] = min(left, capped[group])
                    left -= expected[group]
                np.testing.assert_array_equal(counts[c], expected)
