"""Random worlds: each family's worlds are what it says, the same by number, and those for training are others."""

import dataclasses
import itertools
import pickle

import numpy as np
import pytest

from jaxsched.cluster.hardware import total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError
from jaxsched.pytree import Pytree
from jaxsched.simulation.settings import fits_somewhere
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.jobs import JobList, offered_load
from jaxsched.workload.load import WorkloadOptions, get_workload
from jaxsched.worlds.families import FAMILIES, TASKS, Choice, parse_worlds
from jaxsched.worlds.world import CLUSTER, CONTENDED, MODELS, TRACE, World, draw_world, plain_over_bound

SMALL = [name for name in FAMILIES if not name.startswith("servers-")]


def some(family: str, count: int = 12, **more: bool) -> list[World]:
    return [draw_world(Choice(family, **more), number, jobs=60) for number in range(count)]


def same_jobs(one: JobList, other: JobList) -> bool:
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(JobList)
    )


def same_leaves(one: Pytree, other: Pytree) -> bool:
    import jax

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("family", [name for name in SMALL if name != "contended"])
def test_worlds_can_be_played_and_have_the_load_that_was_drawn(family):
    for world in some(family):
        assert fits_somewhere(world.build(), world.jobs).all(), world.name
        assert 0 < offered_load(world.jobs, total_gpus(world.build())) <= 0.9 + 1e-9
        assert world.build().shape[0] == world.schedulers
        assert (world.jobs.model >= len(get_catalogue().models)).all() and world.jobs.model.max() < len(
            world.catalogue.models
        )


def test_a_family_keeps_its_word():
    assert len({world.topology["kind"] for world in some("any", 40)}) == 6
    for world in some("kind"):
        assert world.jobs.num_gpus.max() <= max(server.gpus for _, server in world.servers)
    for world in some("wide"):
        rack = np.bincount(world.inventory.topology.server_rack).max() * world.servers[0][1].gpus
        assert world.jobs.num_gpus.max() > rack
    for world in some("mixed"):
        assert len({server.gpu_type for _, server in world.servers}) in (2, 3)
    for world in some("partitioned"):
        assert world.schedulers in (2, 3, 4)
    for world in some("llm"):
        plans = [model.patterns.gpus for model in world.models if model.patterns]
        assert len(plans) == len(world.models) == len(np.unique(world.jobs.model))
        assert (np.array(plans)[world.jobs.model - len(get_catalogue().models)] == world.jobs.num_gpus).all()


@pytest.mark.parametrize("servers", [1024, 4096])
def test_large_worlds_have_their_size_and_several_types(servers):
    world = draw_world(Choice(f"servers-{servers}"), 0, jobs=200)
    assert sum(count for count, _ in world.servers) == servers
    assert len({server.gpu_type for _, server in world.servers}) > 1
    assert fits_somewhere(world.build(), world.jobs).all()


def test_contended_worlds_are_those_where_no_plain_rule_is_near_the_bound():
    other = Choice("contended", training=True)
    for world in (draw_world(Choice("contended"), 0, jobs=60), draw_world(other, 0, jobs=60)):
        assert plain_over_bound(world) > CONTENDED


def test_the_same_number_is_the_same_world_and_training_worlds_are_others():
    one, again, other = some("any", 3), some("any", 3), some("any", 3, training=True)
    assert all(same_jobs(a.jobs, b.jobs) and same_leaves(a.build(), b.build()) for a, b in zip(one, again))
    seen = [world.jobs.submit_s.tobytes() for world in (*one, *other, *some("wide", 3), *some("mixed", 3))]
    assert len(set(seen)) == len(seen)
    assert other[0].name == "any-training-0" and one[0].name == "any-0"


@pytest.mark.parametrize("task", TASKS)
def test_worlds_of_a_task_differ_in_their_jobs_alone(task):
    one, *others = [*some(task, 4), *some(task, 4, training=True)]
    for other in others:
        assert same_leaves(one.build(), other.build()) and one.models == other.models
        assert offered_load(other.jobs, total_gpus(other.build())) == pytest.approx(0.85)
    widths = [set(world.jobs.num_gpus.tolist()) for world in (one, *others)]
    assert len({world.jobs.submit_s.tobytes() for world in (one, *others)}) == 8
    assert all(len(own & other) > 1 for own, other in itertools.combinations(widths, 2)), "of one kind"


@pytest.mark.parametrize("family", ["any", "mixed", "partitioned", "llm"])
def test_files_of_a_world_are_the_world(tmp_path, family):
    for world in some(family, 6):
        world.write(tmp_path)
        cluster = get_cluster(str(tmp_path / CLUSTER))
        models = get_catalogue(tmp_path / MODELS)
        assert same_leaves(cluster, world.build()) and models == world.catalogue
        options = WorkloadOptions(catalogue=models)
        jobs, skipped = get_workload(tmp_path / TRACE, options)
        assert same_jobs(jobs, world.jobs) and not skipped


def test_further_lists_hold_the_same_jobs_in_other_orders_at_other_moments():
    world = draw_world(Choice("any"), 2, jobs=50)
    own, *others = world.job_lists(4)
    assert same_jobs(own, world.jobs) and len(others) == 3
    assert all(map(same_jobs, others, world.job_lists(4)[1:]))

    def rows(jobs):
        return [
            *zip(jobs.duration_s.tolist(), jobs.workers.tolist(), jobs.gpus_per_worker.tolist(), jobs.model.tolist())
        ]

    for jobs in others:
        assert sorted(rows(jobs)) == sorted(rows(own)) and rows(jobs) != rows(own)
        assert (np.diff(jobs.submit_s) >= 0).all() and jobs.submit_s[[0, -1]] == pytest.approx(own.submit_s[[0, -1]])
        assert (jobs.given_s == jobs.submit_s).all() and (jobs.home == own.home).all()
    assert len({jobs.submit_s.tobytes() for jobs in (own, *others)}) == 4


def test_a_world_can_be_sent():
    world = draw_world(Choice("any"), 1, jobs=20)
    sent = pickle.loads(pickle.dumps(world))
    assert same_leaves(sent.build(), world.build()) and same_jobs(sent.jobs, world.jobs)


def test_what_is_asked_for_is_read():
    assert parse_worlds("wide:7") == Choice("wide", 7) and parse_worlds("any").worlds == 20
    assert parse_worlds("any:3:training") == Choice("any", 3, training=True)
    for wrong in ("", "any:", "any:0", "any:1.5", "any:99999", "any:1e3", "any:3:", "any:3:test", "any:3:training:x"):
        with pytest.raises(UserError, match="worlds: "):
            parse_worlds(wrong)
