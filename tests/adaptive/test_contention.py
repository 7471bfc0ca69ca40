"""Jobs with profiles that share NICs and links: by hand, and every job of random worlds as the oracle has it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.adaptive.compare import Part, play_parts
from jaxsched.adaptive.contention import network_of, stretches
from jaxsched.adaptive.knowing import fit_to, share_of
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import read_applications
from jaxsched.adaptive.rounds import shape_of
from jaxsched.adaptive.simulate import NO_OUTAGES, Nodes, Rules, build, simulate
from jaxsched.adaptive.state import start
from jaxsched.adaptive.workload import read_workload
from jaxsched.cluster.inventory import make_inventory
from jaxsched.cluster.outages import Outages
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import nvl72, torus2d
from jaxsched.cluster.topology import leaf_spine
from jaxsched.dynamics.interference import (
    FittedStrengths,
    Interference,
    analytic,
    default_interference,
    default_strengths,
    fitted,
)  # fmt: skip
from tests.adaptive.files import write_profiles, write_workload
from tests.oracle import adaptive, adaptive_links, allocation, knowing, typed
from tests.oracle.cluster import Hardware
from tests.support.cases import TIMES

NODES, PER_NODE, LISTS, KINDS = 8, 2, 9 * TIMES, ("T4", "V100")
KAPPA = {"nic": 2.0, "link": 1.5}
POWER = {"nic": 1.5, "link": 2.0}
FITTED = Interference(
    law=fitted,
    weights=FittedStrengths(
        kappa=np.array([1, 1, 1, *KAPPA.values(), 1], np.float32),
        power=np.array([1, 1, 1, *POWER.values(), 1], np.float32),
    ),
)
LAWS = {
    "default": (default_interference(), adaptive_links.analytic({"nic": 1.0, "link": 1.0})),
    "high": (
        Interference(law=analytic, weights=default_strengths("high")),
        adaptive_links.analytic({"nic": 2.0, "link": 2.0}),
    ),
    "fitted": (FITTED, adaptive_links.fitted(KAPPA, POWER)),
}


class World(NamedTuple):
    """What is played."""

    policy: str
    law: str
    topology: str
    types: tuple[tuple[int, int], ...] = ((NODES, PER_NODE),)  # nodes, and GPUs of a node
    fits: bool = False
    schedulers: int = 1


WORLDS = {
    "pollux": World("pollux", "default", "tree"),
    "equal": World("equal", "high", "torus"),
    "tiresias": World("tiresias", "fitted", "tree"),
    "domains": World("afs", "high", "domains"),
    "types": World("sia-greedy", "default", "tree", types=((4, 2), (4, 4))),
    "history": World("pollux", "high", "tree", fits=True),
    "schedulers": World("pollux", "high", "tree", schedulers=2),
}


def drawn_inventory(world, rng):
    """Thin links, and NICs of several speeds."""
    if world.topology == "domains":
        topology, joined = nvl72(NODES, trays=2, domains=3, servers_per_unit=1, oversubscription=4.0), 6
    elif world.topology == "torus":
        topology, joined = torus2d(NODES, link_gbits_s=10.0), 0
    else:
        topology, joined = leaf_spine(NODES, servers_per_rack=2, oversubscription=6.0, spines=2, flows=3), 0
    sizes = [(width, kind) for (count, width), kind in zip(world.types, KINDS) for _ in range(count)]
    nics = rng.choice([10.0, 25.0, 100.0], NODES)
    servers = [
        Server((gpus,), kind, nic_gbits_s=float(nic), nvlink_gbytes_s=900.0 if i < joined else None)
        for i, ((gpus, kind), nic) in enumerate(zip(sizes, nics))
    ]
    return make_inventory(servers, topology)


def drawn_outages(rng):
    nodes, begins, lasts = rng.integers(0, NODES, 10), rng.integers(1, 3000, 10), [5, 60, 400, 60, 5] * 2
    return [(int(n), float(begin), float(begin + last)) for n, begin, last in zip(nodes, begins, lasts)]


def expected_ends(world, lists, folder, apps, contend, outages):
    """Of every list, by the oracle."""
    policy, kinds = getattr(allocation, world.policy.replace("-", "_"), None), KINDS if len(world.types) > 1 else ("",)
    known = {name: [adaptive.Application(folder / name, kind) for kind in kinds] for name in apps}

    def job(row):
        batch = row.batch if not POLICIES[world.policy].own_batch else None
        if len(kinds) > 1:
            return typed.Job(known[row.application], row.name, row.submit_s, row.gpus, row.least, row.most)
        kind = knowing.Job if world.fits else adaptive.Job
        return kind(row.name, row.submit_s, known[row.application][0], row.gpus, batch, least=row.least, high=row.most)

    for rows in lists:
        more = {"outages": outages, "contend": contend}
        if world.schedulers > 1:
            owned = np.array_split(np.arange(NODES), world.schedulers)
            parts = [adaptive_links.Part(NODES, PER_NODE, outages=outages, mine=mine.tolist()) for mine in owned]
            jobs = [[job(row) for row in rows[p :: world.schedulers]] for p in range(world.schedulers)]
            yield adaptive_links.play_together(parts, jobs, policy, allocation.PLACING[policy], contend)
        elif len(kinds) > 1:
            played = [job(row) for row in rows]
            yield typed.World(world.types, **more).play(played, typed.sia_greedy, adaptive.whole_nodes)
        elif world.fits:
            oracle = knowing.World(NODES, PER_NODE, fit=fit_to, **more)
            yield oracle.play([job(row) for row in rows], policy, allocation.PLACING[policy])
        else:
            oracle = adaptive.World(NODES, PER_NODE, **more)
            yield oracle.play([job(row) for row in rows], policy, allocation.PLACING[policy])


@pytest.mark.slower
@pytest.mark.parametrize("name", WORLDS)
def test_random_worlds(name, tmp_path):
    """Every job ends in the same second, though some synchronise longer than measured."""
    world, rng = WORLDS[name], np.random.default_rng(7)
    kinds = KINDS if len(world.types) > 1 else ("",)
    width = max(width for _, width in world.types)
    write_profiles(tmp_path / "profiles", np.random.default_rng(3), kinds, per_node=width, nodes=NODES, sync_s=0.05)
    apps = read_applications(tmp_path / "profiles", kinds)
    lists = []
    for i in range(LISTS // 3 if world.fits else LISTS):  # fits take long
        write_workload(tmp_path / f"{i}.csv", np.random.default_rng(900 + i), spread_s=(60, 600, 3000)[i % 3])
        lists.append(read_workload(tmp_path / f"{i}.csv", apps))
    inventory, (model, law) = drawn_inventory(world, rng), LAWS[world.law]
    hardware = Hardware(inventory.build(1))
    outages = drawn_outages(rng)
    nodes = [Nodes(count, gpus, kind) for (count, gpus), kind in zip(world.types, kinds)]
    gone, network = Outages(*map(np.array, zip(*outages))), network_of(inventory, np.arange(NODES), model)
    rules, policy = Rules(outages=gone, fits=world.fits, network=network), POLICIES[world.policy]
    if world.schedulers > 1:
        owner = tuple(p for p in range(world.schedulers) for _ in range(NODES // world.schedulers))
        whole = Part(tuple(nodes), gone, tuple(range(world.schedulers)), owner, network)
        results = [play_parts(policy, apps, jobs, [whole], rules) for jobs in lists]
    else:
        results = simulate(policy, apps, lists, nodes, rules)
    fabric = adaptive_links.Fabric(hardware, range(NODES), law)
    expected = expected_ends(world, lists, tmp_path / "profiles", apps, fabric.stretch, outages)
    for jobs, result, ends in zip(lists, results, expected, strict=True):
        assert dict(zip([job.name for job in jobs], result.jct_s)) == ends
    assert fabric.longest > 1.2


@pytest.mark.parametrize("thinner", [1.0, 4.0])
def test_two_jobs_between_two_racks(thinner, tmp_path):
    """Both synchronise on two NICs and on the links of two racks; a link a quarter as wide binds even one alone."""
    write_profiles(tmp_path / "profiles", np.random.default_rng(3), per_node=2)
    write_workload(tmp_path / "jobs.csv", np.random.default_rng(1), jobs=2)
    apps = read_applications(tmp_path / "profiles")
    jobs = read_workload(tmp_path / "jobs.csv", apps)
    topology = leaf_spine(2, servers_per_rack=1, oversubscription=thinner)
    network = network_of(make_inventory([Server((2,))] * 2, topology), np.arange(2), default_interference())
    with jax.enable_x64(True):
        world, lists = build(POLICIES["equal"], apps, [jobs], (Nodes(2, 2),), Rules(network=network))
        one = jax.tree.map(lambda leaf: leaf[0], lists)
        for count in (1, 2):
            place = jnp.asarray([[1, 1], [1, 1] if count > 1 else [0, 0]], jnp.int32)
            state = start(world, one).replace(place=place, shape=shape_of(world, place))
            row = jnp.zeros(2, jnp.int32)
            share = np.where(place.sum(-1) > 0, share_of(world, one, state, row), 0.0)
            use = thinner * share / (1.0 + share * (thinner - 1.0))
            expected = np.where(np.asarray(place).sum(-1) > 0, thinner * (1.0 + use[::-1]), 1.0)
            np.testing.assert_allclose(stretches(world, one, state), expected, rtol=1e-6)


def test_schedulers_that_share_no_link_are_worlds_apart(tmp_path):
    """Two racks, a scheduler each: nothing crosses between them, and each plays as if it were alone."""
    write_profiles(tmp_path / "profiles", np.random.default_rng(3), per_node=2, sync_s=0.05)
    write_workload(tmp_path / "jobs.csv", np.random.default_rng(1), jobs=6, spread_s=60)  # 3, 3 and 2 GPUs of 8
    apps = read_applications(tmp_path / "profiles")
    jobs, law = read_workload(tmp_path / "jobs.csv", apps), default_interference()
    whole, half = (make_inventory([Server((2,))] * n, leaf_spine(n, servers_per_rack=4)) for n in (8, 4))
    both = Part((Nodes(8, 2),), NO_OUTAGES, (0, 1), (0,) * 4 + (1,) * 4, network_of(whole, np.arange(8), law))
    network = network_of(half, np.arange(4), law)
    apart = [Part((Nodes(4, 2),), NO_OUTAGES, (p,), (), network) for p in range(2)]
    one, other = (play_parts(POLICIES["equal"], apps, jobs, parts, Rules()) for parts in ([both], apart))
    np.testing.assert_array_equal(one.finish_s, other.finish_s)
    np.testing.assert_array_equal(one.restarts, other.restarts)
