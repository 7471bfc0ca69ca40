"""Generated days: how often what happens lies in the 90% intervals that were told before."""

import dataclasses
import functools
import time

import numpy as np
import pytest

from jaxsched.env.state import EnvConfig, make_params
from jaxsched.kube.planning.encode import blank_jobs
from jaxsched.kube.planning.fleet import gpu_nodes, read_fleet
from jaxsched.kube.planning.pool_rollouts import MOST_FORWARDS, Question
from jaxsched.kube.planning.rounds import home_partition
from jaxsched.kube.planning.settings import PlanSettings
from jaxsched.kube.planning.snapshot import Snapshot
from jaxsched.kube.planning.whatif import answers
from jaxsched.policies.registry import parse
from jaxsched.pytree import on_device
from jaxsched.simulation.engines.compiled.run import Run
from jaxsched.workload.jobs import JobTable
from jaxsched.workload.models import model_index
from tests.kube.planning.snapshots import nodes, snapshot
from tests.support.cases import TIMES
from tests.support.kube.objects import NOW, make_pod

INTERVAL_S, ERROR, DAY_S = 10.0, 0.5, 12 * 3600.0
SETTINGS = PlanSettings(schedulers=2)
GPUS = 64


@functools.cache
def fleet():
    return read_fleet(gpu_nodes(snapshot(nodes(8)).nodes, SETTINGS), SETTINGS)


def key(job: int) -> str:
    return f"default/scheduling.x-k8s.io/j{job:04}"


@dataclasses.dataclass(frozen=True)
class Day:
    """What gangs came and what became of them; times from the day's beginning."""

    jobs: JobTable
    start_s: np.ndarray
    finish_s: np.ndarray
    partition: np.ndarray
    workers: np.ndarray


def drawn_jobs(seed: int) -> JobTable:
    """Gangs that together ask for as many GPU hours as there are; true run times log-normal around the stated ones."""
    draw = np.random.default_rng(seed)
    size, gpus = draw.choice((1, 1, 2, 3), 400), draw.choice((1, 2, 4, 4), 400)
    stated = np.exp(draw.uniform(np.log(300.0), np.log(7200.0), 400)).round()
    gap_s = (size * gpus * stated).mean() * np.exp(ERROR**2 / 2) / GPUS
    arrival = np.cumsum(draw.exponential(gap_s, 400)) // INTERVAL_S + 1
    count = int((arrival * INTERVAL_S < DAY_S).sum())
    jobs = blank_jobs(count)
    jobs.arrival[:], jobs.workers[:], jobs.gpus_per_worker[:] = arrival[:count], size[:count], gpus[:count]
    jobs.model[:] = model_index(SETTINGS.default_model)
    jobs.home[:] = [home_partition(key(job), SETTINGS.schedulers or 1) for job in range(count)]
    true = stated * np.exp(ERROR * draw.standard_normal(400))
    return jobs.replace(duration_s=true[:count].astype(np.float32), estimate_s=stated[:count].astype(np.float32))


def first(jobs: JobTable, count: int) -> JobTable:
    return jobs.replace(**{name: column[:count] for name, column in vars(jobs).items() if column is not None})


def played(jobs: JobTable, policy: str, in_python: bool = False) -> Day:
    cluster, count = fleet().split, len(jobs.arrival)
    config = EnvConfig(running_slots=count, queue_slots=count, rounds=256, record_placements=True)
    params = make_params(cluster, interval_s=INTERVAL_S, max_forwards=on_device(MOST_FORWARDS, np.int32))
    run = Run(config, params, jobs, parse(policy), INTERVAL_S, in_python=in_python)
    run.go_on()
    records = run.tables.records
    return Day(jobs, records["start"] * INTERVAL_S, records["finish_s"], records["partition"], run.tables.placement)


def seen(day: Day, at_s: float) -> Snapshot:
    """The cluster at that moment, after the decisions of its boundary."""
    pods = []
    for job in np.flatnonzero(day.jobs.arrival * INTERVAL_S <= at_s):
        if day.finish_s[job] <= at_s:
            continue
        where: list[tuple[str, dict[str, str]]] = [("", {})] * int(day.jobs.workers[job])
        if day.start_s[job] <= at_s:
            slots = np.argwhere(day.workers[job].reshape(fleet().shape.servers, -1))
            counts = day.workers[job].reshape(fleet().shape.servers, -1)
            where = [
                (fleet().nodes[fleet().rows[day.partition[job], slot]].name, {"jaxsched.io/gpu-group": str(group)})
                for slot, group in slots
                for _ in range(counts[slot, group])
            ]
        notes = {"jaxsched.io/duration-seconds": f"{day.jobs.estimate_s[job]:.0f}"}
        for number, (node, group) in enumerate(where):
            raw = make_pod(
                f"j{job:04}-{number}",
                int(day.jobs.gpus_per_worker[job]),
                f"j{job:04}",
                len(where),
                node=node,
                uid=f"{job}-{number}",
                age_s=at_s - float(day.jobs.arrival[job]) * INTERVAL_S,
                annotations=notes | group,
            )
            if node:
                began_s = NOW - at_s + float(day.start_s[job])
                raw["status"]["startTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began_s))
            pods.append(raw)
    return snapshot(nodes(8), pods)


def covered(policy: str, days: int) -> tuple[int, int, int, int]:
    """Gangs asked about; those that started in their intervals if nobody else came, as the day went on, and the
    number that started before their median."""
    asked = alone = truly = before = 0
    for seed in range(days):
        day = played(drawn_jobs(seed), policy)
        for at_s in DAY_S * np.array([0.3, 0.5, 0.7, 0.9]) // INTERVAL_S * INTERVAL_S:
            known = int((day.jobs.arrival * INTERVAL_S <= at_s).sum())
            rest = played(first(day.jobs, known), policy)
            question = Question(error=ERROR, seed=1000 + seed)
            for answer in answers(seen(day, at_s), [parse(policy)], SETTINGS, question):
                job = int(answer.gang.key[-4:])
                assert answer.low_s is not None and answer.high_s is not None and answer.median_s is not None
                then_s = rest.start_s[job] - at_s
                asked += 1
                alone += answer.low_s <= then_s <= answer.high_s
                truly += answer.low_s <= day.start_s[job] - at_s <= answer.high_s
                before += then_s < answer.median_s
    return asked, alone, truly, before


@pytest.mark.long
@pytest.mark.parametrize("policy", ["pack", "pack:fifo+backfill+forward", "greedy-wait"])
def test_intervals_hold_what_happens_as_often_as_they_say(policy: str) -> None:
    asked, alone, truly, before = covered(policy, 15 * TIMES)
    print(f"{policy}: {asked} gangs, {alone / asked:.1%}, as the day went on {truly / asked:.1%}, {before / asked:.1%}")
    assert asked >= 300
    assert 0.85 <= alone / asked <= 0.95
    assert 0.4 <= before / asked <= 0.6
