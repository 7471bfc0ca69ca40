"""Lists of jobs as no trace has them, in every engine: gaps, all at once, tiny and huge jobs, any interval."""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.policies.registry import parse
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.jax_run import JaxEngine, JaxPlayer
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import PlayedWorld, Settings, env_params
from jaxsched.workload.jobs import JobList, make_job_list
from jaxsched.workload.models import MODEL_NAMES, profiles
from tests.oracle import policies, simulator
from tests.support.cases import TIMES

LISTS, PARTS, JOBS = 150 * TIMES, 3 * TIMES, 12
SPECS = ("pack:sjf+backfill", "greedy-wait:p1", "load-balance:area+backfill+reserve")
FOR_THE_ORACLE = 1500  # boundaries, which it plays one after the other
CLUSTER = "leaf-spine-2"
# Run times are float32 in JAX: so far, in parts of a run, a completion may be from where it is in float64.
CLOSE = 1e-5


class Odd(NamedTuple):
    """A list and the interval it is played with."""

    jobs: JobList
    interval_s: float


def drawn(rng: np.random.Generator) -> Odd:
    """One list; intervals from 0.1 s to a day."""
    interval_s = float(np.float32(10 ** rng.uniform(-1, np.log10(86400))))
    gaps = {
        "at once": np.zeros(JOBS),
        "close": rng.uniform(0, 1, JOBS),
        "on boundaries": rng.integers(0, 3, JOBS).astype(float),
        "far": 10 ** rng.uniform(2, 7, JOBS),
        "mixed": np.where(rng.random(JOBS) < 0.2, 10 ** rng.uniform(5, 6.5, JOBS), rng.uniform(0, 2, JOBS)),
    }
    lengths = {
        "tiny": 10 ** rng.uniform(-6, -1, JOBS),
        "about one": rng.uniform(0.2, 4, JOBS),
        "alike": np.full(JOBS, rng.uniform(0.5, 20)),
        "huge": 10 ** rng.uniform(1, 4.5, JOBS),
        "mixed": 10 ** rng.uniform(-3, 2.5, JOBS),
    }
    gap, length = gaps[rng.choice(list(gaps))], lengths[rng.choice(list(lengths))]
    workers = rng.choice([1, 1, 2, 4, 8, 16, 40], JOBS)
    jobs = make_job_list(
        np.cumsum(gap) * interval_s,
        np.maximum(length * interval_s, 1e-6),
        workers,
        ps=np.where((workers > 1) & (rng.random(JOBS) < 0.4), np.maximum(1, workers // 4), 0),
        model=rng.integers(len(MODEL_NAMES), size=JOBS),
        home=rng.integers(2, size=JOBS),
    )
    return Odd(jobs, interval_s)


@functools.cache
def prepared(spec: str) -> JaxPlayer:
    """One program for all lists: what differs between them are arguments of it."""
    return JaxEngine().prepare(
        parse(spec), PlayedWorld(get_cluster(CLUSTER, 2), [drawn(np.random.default_rng(0)).jobs], SETTINGS)
    )


SETTINGS = Settings(interference="analytic", record_placements=True)


def played(spec: str, odd: Odd) -> tuple[Outcome, Outcome]:
    """By JAX and by the compiled loop."""
    cluster, settings = get_cluster(CLUSTER, 2), dataclasses.replace(SETTINGS, interval_s=odd.interval_s)
    player = prepared(spec)
    params = env_params(cluster, player.program.config, settings)
    (ours,) = dataclasses.replace(player, params=params, settings=settings).play([odd.jobs])
    (loop,) = CompiledEngine().prepare(parse(spec), PlayedWorld(cluster, [odd.jobs], settings)).play([odd.jobs])
    return ours, loop


def by_the_oracle(spec: str, odd: Odd) -> simulator.Result:
    of = parse(spec).spec
    assert of is not None and isinstance(of.queue.order, str)
    options = (of.queue.order, of.queue.backfill, of.forward, of.threshold, of.queue.window, of.patience)
    settings = dataclasses.replace(SETTINGS, interval_s=odd.interval_s)
    cluster = get_cluster(CLUSTER, 2)
    params = env_params(cluster, prepared(spec).program.config, settings)
    return simulator.simulate(
        cluster,
        odd.jobs,
        profiles(),
        policies.make_policy(of.rule, *options, lifetime=of.lifetimes, reserve=of.queue.reserve),
        interval_s=odd.interval_s,
        rounds=settings.rounds,
        max_forwards=int(params.max_forwards),
        interference="analytic",
        strengths=np.asarray(params.interference.weights.kappa),
    )


def near_a_boundary(result: Outcome, interval_s: float) -> bool:
    """Some job ends so close to a boundary that float32 may put it on the other side."""
    ends, runs = result.finish_s[result.finished], result.run_s[result.finished]
    off = np.abs(ends - np.round(ends / interval_s) * interval_s)
    return bool((off <= CLOSE * np.maximum(runs, interval_s)).any())


def same(ours: Outcome, loop: Outcome) -> bool:
    """The same jobs start at the same boundaries on the same GPUs."""
    assert ours.cut_off is None and loop.cut_off is None and (ours.status == loop.status).all()
    assert ours.workers is not None and loop.workers is not None
    return (
        np.array_equal(ours.start_s, loop.start_s, equal_nan=True)
        and np.array_equal(ours.partition, loop.partition)
        and np.array_equal(ours.workers, loop.workers)
    )


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_every_engine_plays_odd_lists_alike(part):
    differ = asked = 0
    for number in range(part * LISTS // PARTS, (part + 1) * LISTS // PARTS):
        spec, odd = SPECS[number % len(SPECS)], drawn(np.random.default_rng(number))
        ours, loop = played(spec, odd)
        if not same(ours, loop):
            assert near_a_boundary(loop, odd.interval_s), f"list {number}, {spec}"
            differ += 1
            continue
        fine = 2 * np.spacing(np.nanmax(loop.finish_s))  # what float64 tells apart of times so late
        np.testing.assert_allclose(ours.run_s, loop.run_s, rtol=CLOSE, atol=fine, err_msg=f"list {number}, {spec}")
        ended = np.nanmax(loop.finish_s - loop.jobs.submit_s) / odd.interval_s
        if ended * JOBS > FOR_THE_ORACLE:
            continue
        asked += 1
        theirs = by_the_oracle(spec, odd)
        if not np.array_equal(loop.start_s, theirs.start_s, equal_nan=True):
            assert near_a_boundary(loop, odd.interval_s), f"list {number}, {spec}, oracle"
            differ += 1
            continue
        assert loop.workers is not None
        assert [{int(a): int(row[a]) for a in np.flatnonzero(row)} for row in loop.workers] == theirs.workers
        np.testing.assert_allclose(loop.run_s, theirs.finish_s - theirs.start_s, rtol=CLOSE, atol=fine)
    assert asked > LISTS / PARTS / 4 and differ <= LISTS / PARTS / 10
