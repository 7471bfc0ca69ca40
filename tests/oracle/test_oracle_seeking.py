"""The oracle's jobs go where they would start sooner, against numbers worked out with a pencil."""

import dataclasses
import functools
import math

import pytest

from jaxsched.semantics import SEEK_JOBS
from tests.oracle import seeking
from tests.oracle.cases import close, make_cluster, make_jobs, make_profiles, run
from tests.oracle.cluster import Hardware, read_jobs
from tests.oracle.contention import demand, make_interference
from tests.oracle.policies import make_policy
from tests.oracle.seeking import index_of, inputs, news
from tests.oracle.state import Running, State

EIGHTS = make_cluster([[[8]]] * 3)
HOUR = 3600.0
LEAST_WAIT = (-1.0, 0.0, 0.1, 0.0)
seeker = functools.partial(make_policy, "pack", backfill=True, forward="spread", seek=LEAST_WAIT)


def numbers(**given: float) -> list[float]:
    """`a0`..`a3` as given, all others 0."""
    return [given.get(f"a{i}", 0.0) for i in range(4)]


def make_state(cluster, *rows, interval_s=60.0, **slots) -> State:
    """At boundary 0 the jobs with `runs` run at home, on group 0, and the others are queued at home."""
    jobs = make_jobs(*[{k: x for k, x in row.items() if k != "runs"} for row in rows])
    table = read_jobs(jobs, make_profiles({}))
    limits = {"queue_slots": 99, "running_slots": 99, "max_forwards": 2} | slots
    state = State(Hardware(cluster), table, make_interference("none"), **limits, interval_s=interval_s)
    for j, (row, job) in enumerate(zip(rows, table, strict=True)):
        if not row.get("runs"):
            state.queue[job.home].append(j)
            continue
        used = demand(state.hw, job.home, job, {0: job.W}, {})
        state.running[job.home].append(
            Running(job=j, partition=job.home, w={0: job.W}, u={}, demand=used, start_s=0.0, remaining_s=job.duration_s)
        )
    return state


def view(state: State, weights=LEAST_WAIT) -> seeking.View:
    """In submit order, without what holds jobs back."""
    return seeking.View(weights, state.feasible, lambda j: (0.0, j), state.slowdowns)


def busy(home: int, hours: float, gpus: int = 8) -> dict:
    """A job that runs there for so long."""
    return {"runs": True, "home": home, "g": gpus, "duration": hours * HOUR}


# -------------------------------------------------------------------------------------------------------------- index


def test_where_the_numbers_stand():
    x = [2.0, 0, 0, 3.0]
    assert index_of(numbers(a0=1.5, a3=-1), x) == 0
    assert index_of(numbers(a0=1.5, a3=-1.0004), x) == -2, "-1.2 + 0.123, rounded down"
    assert [index_of(numbers(a0=a), x) for a in (4e-4, 4.4e-4)] == [0, 1], "0.8 and 0.88"
    with pytest.raises(AssertionError):
        index_of([*numbers(), 0.0], x)


def test_inputs_of_partitions():
    # Of 8 GPUs at 1, 4 are free, and all at 940: job 0 runs there. Jobs 1 (g = 2) and 3 wait there, and for job 2 only
    # job 1 is ahead.
    state = make_state(
        EIGHTS,
        {"runs": True, "home": 1, "g": 4, "duration": 940},
        {"home": 1, "g": 2, "duration": 340},
        {"home": 0, "g": 8, "duration": 440},
        {"home": 1, "g": 4},
        {"home": 0, "g": 1, "duration": 60},
    )
    at = [inputs(state, view(state), 0, t, 2) for t in range(2)]
    close(at[0], [math.log(60 / 500), 1 / 8, 1, 0])
    close(at[1], [math.log(2), 6 / 8, 0, 0])


def test_doubt_is_how_many_gpus_have_jobs_that_have_outlived_their_estimates():
    wrong = {"duration": 3600, "ratio": 0.5}
    rows = busy(0, 1, 4), busy(1, 1, 6) | wrong, busy(2, 1, 1) | wrong, {"g": 8}
    state = make_state(EIGHTS, *rows)
    assert seeking.doubt(state) == 0, "none of them has done anything yet"
    state.running[2][0].remaining_s = 1800.5
    assert seeking.doubt(state) == 0
    state.running[2][0].remaining_s = 1800.0
    close(seeking.doubt(state), 100 / 11)
    state.running[1][0].remaining_s = 100.0
    assert seeking.doubt(state) == 10, "7 of 11 GPUs"
    state.forwards[3] = 1
    assert [inputs(state, view(state), 0, t, 3)[3] for t in range(3)] == [10, 0, 0], "in its own partition"
    state.forwards[3] = 0
    assert inputs(state, view(state), 0, 0, 3)[3] == 5, "it has two forwards left"
    state.max_forwards = 3
    assert inputs(state, view(state), 0, 0, 3)[3] == 0, "it has three"
    state.max_forwards = 2
    state.history, state.forwards[3] = True, 1
    assert inputs(state, view(state), 0, 0, 3)[3] == 10
    assert seeking.doubt(make_state(EIGHTS, {"g": 8})) == 0


def test_who_doubts_keeps_the_last_two_forwards():
    rows = busy(0, 2), busy(1, 1), busy(2, 3, 7), busy(2, 1, 1) | {"ratio": 0.5}, {"g": 8}
    state = make_state(EIGHTS, *rows)
    policy = seeker(seek=(-1.0, 0.0, 0.1, 1.0))
    state.forwards[4] = 1
    assert policy(state, 0) == ("forward", 4, 1)
    state.running[2][1].remaining_s = 1000.0
    assert policy(state, 0) == ("wait",), "a doubt of 4"
    state.forwards[4] = 0
    assert policy(state, 0) == ("wait",), "two, and half of it"
    state.max_forwards = 3
    assert policy(state, 0) == ("forward", 4, 1), "it has three"


def test_a_job_that_is_held_back_waits_for_the_next_end():
    state = make_state(EIGHTS, busy(1, 1, 4), {"home": 0, "g": 4, "duration": 3540})
    held_back = dataclasses.replace(view(state), may_start=lambda t, j: False)
    assert inputs(state, view(state), 0, 1, 1)[0] == math.log(1 / 60)
    close(inputs(state, held_back, 0, 1, 1)[0], math.log(3660 / 3600))


def test_what_the_inputs_are_clipped_to():
    state = make_state(EIGHTS, *[{"home": 1, "g": 8}] * 6, {"home": 0, "duration": 40})
    assert inputs(state, view(state), 0, 1, 6)[1] == 4
    # Nothing runs at 1 whose end could make room for gangs that do not fit: one of 4 GPUs does not, since its GPUs lie
    # in no group of four.
    torn = make_cluster([[[2], [2]], [[4], [0]]])
    state = make_state(torn, busy(1, 1, 4), {"home": 0, "g": 4, "duration": 40})
    close(inputs(state, view(state), 0, 0, 1)[0], math.log((1e7 + 60) / 100))


def test_the_wait_is_for_those_ahead_too():
    # At 1, four GPUs become free at 1 h, and four at 3 h.
    rows = busy(1, 1, 4), busy(1, 3, 4), {"home": 1, "g": 8}, {"home": 0, "g": 4}
    state = make_state(EIGHTS, *rows)
    of = functools.partial(seeking.wait_s, state, view(state), 1, 3)
    assert [of(ahead) for ahead in (0, 1, 4, 80)] == [HOUR, 3 * HOUR, 3 * HOUR, 3 * HOUR], "at most all are waited for"


def test_jobs_of_one_end_free_their_gpus_together():
    state = make_state(EIGHTS, busy(1, 2, 4), busy(1, 2, 4), {"home": 0, "g": 8})
    assert seeking.wait_s(state, view(state), 1, 2, 0) == 2 * HOUR


def test_jobs_on_shared_gpus_free_none():
    state = make_state(EIGHTS, busy(1, 1) | {"g": 1, "milli": 500}, {"home": 0, "g": 8})
    state.running[1][0].gpu = 0
    assert seeking.wait_s(state, view(state), 1, 1, 0) == 1e7


# --------------------------------------------------------------------------------------------------- while a job waits


def test_a_gang_goes_where_it_waits_less():
    hours = [busy(0, 2), busy(1, 1.5), busy(2, 1, 4), busy(2, 3, 4)]
    assert seeker()(make_state(EIGHTS, *hours, {"g": 4}), 0) == ("forward", 4, 2)
    # Job 4 is before job 5 at 2, and needs all of it.
    assert seeker()(make_state(EIGHTS, *hours, {"home": 2, "g": 8}, {"g": 4}), 0) == ("forward", 5, 1)
    # A job behind it there is no matter.
    state = make_state(EIGHTS, *hours, {"g": 4}, {"home": 2, "g": 8})
    assert seeker()(state, 0) == ("forward", 4, 2)
    assert make_policy("pack", "fifo", True, "spread")(state, 0) == ("wait",)


def test_it_stays_for_a_tenth_less():
    # (w + 60) / (3540 + 60) against exp(-0.1) = 0.9048 of it.
    for seconds, action in ((3190, ("forward", 2, 1)), (3205, ("wait",))):
        state = make_state(make_cluster([[[8]]] * 2), busy(0, 3540 / HOUR), busy(1, seconds / HOUR), {"g": 8})
        assert seeker()(state, 0) == action


def test_ties_go_to_the_lowest_partition():
    state = make_state(make_cluster([[[8]]] * 4), busy(0, 1), busy(1, 1), busy(2, 2), busy(3, 1), {"home": 2, "g": 8})
    assert seeker()(state, 2) == ("forward", 4, 0)
    assert seeker(seek=numbers(a0=-1))(make_state(EIGHTS, busy(0, 1), busy(1, 1), busy(2, 1), {"g": 8}), 0) == ("wait",)


def test_no_forwards_left_no_room_and_no_hope():
    rows = busy(0, 2), busy(1, 1), busy(2, 1.5), {"g": 8}, {"home": 1, "g": 1}
    state = make_state(EIGHTS, *rows)
    state.forwards[3] = 2
    assert seeker()(state, 0) == ("wait",)
    assert seeker()(make_state(EIGHTS, *rows, queue_slots=1), 0) == ("forward", 3, 2)
    # Partition 1 could not hold it.
    state = make_state(make_cluster([[[8]], [[4]]]), busy(0, 2), busy(1, 1, 4), {"g": 8})
    assert seeker(seek=numbers(a2=-1))(state, 0) == ("wait",)


def test_the_first_that_gains_goes_and_few_are_looked_at():
    # Job 2 waits as long everywhere, job 3 does not: four GPUs become free sooner at 1.
    two = make_cluster([[[8]]] * 2)
    rows = busy(0, 2), busy(1, 1, 4), busy(1, 2, 4)
    assert seeker()(make_state(two, *rows, {"g": 8}, {"g": 4}, {"g": 4}), 0) == ("forward", 4, 1)
    wide = [{"g": 8}] * (SEEK_JOBS - 1)
    assert seeker()(make_state(two, *rows, *wide, {"g": 4}), 0) == ("forward", 3 + SEEK_JOBS - 1, 1)
    assert seeker()(make_state(two, *rows, *wide, {"g": 8}, {"g": 4}), 0) == ("wait",)
    # By `sjf` it is among the first.
    short = {"g": 4, "duration": 50}
    assert seeker(order="sjf")(make_state(two, *rows, *wide, {"g": 8}, short), 0) == ("forward", 3 + SEEK_JOBS, 1)


def test_a_job_that_fits_but_is_held_back_stays():
    # Four GPUs are free at home and kept for job 3, which needs all; job 4 is neither smaller nor done before.
    rows = busy(0, 1, 4), busy(1, 2), {"g": 8, "duration": 2 * HOUR}, {"g": 4, "duration": 6 * HOUR}
    state = make_state(make_cluster([[[8]]] * 2), *rows)
    assert not state.feasible(0, 2) and state.feasible(0, 3)
    policy = seeker(order="sjf", reserve=True, seek=numbers(a2=-1))
    state.forwards[2] = 2
    assert policy(state, 0) == ("wait",)
    state.forwards[2] = 0
    assert policy(state, 0) == ("forward", 2, 1)


# --------------------------------------------------------------------------------------------------------------- news


def test_news():
    state = make_state(make_cluster([[[4]]]), {"submit": 100}, {"submit": 130, "g": 8}, {"submit": 240})
    run_of = Running(job=0, partition=0, w={}, u={}, demand=None, start_s=0.0, remaining_s=0.0)

    def at(boundary: int, *ended: float) -> bool:
        state.boundary, state.finished = boundary, [(run_of, x) for x in ended]
        return news(state)

    assert [at(i) for i in range(6)] == [False, False, True, False, True, False], "job 1 is rejected"
    assert [at(5, x) for x in (239.0, 240.0, 240.1, 300.0)] == [False, False, True, True]


def test_nothing_moves_without_news():
    two = make_cluster([[[8]]] * 2)
    state = make_state(two, busy(0, 2), busy(1, 1), {"g": 8})
    state.boundary = 3
    assert seeker()(state, 0) == ("wait",)
    # One forward at a boundary: of jobs 2 and 3 the second has to wait until job 4 is submitted.
    rows = [{"g": 8, "duration": 2 * HOUR}, {"g": 8, "duration": HOUR, "home": 1}]
    rows += [{"g": 8, "submit": 200}, {"g": 8, "submit": 200}, {"submit": 1000, "home": 1}]
    for horizon_s, there in ((240, [-1, -1]), (250, [1, 0]), (1020, [1, 0]), (1021, [1, 1])):
        ours = run(two, make_jobs(*rows), make_profiles({}), seeker(), rounds=1, horizon_s=horizon_s)
        assert list(ours.partition[2:4]) == there


# ------------------------------------------------------------------------------------------------------ before a start


def test_a_job_that_could_start_goes_where_fewer_wait():
    rows = busy(0, 1, 2), busy(1, 1, 6), busy(2, 1, 7), {"g": 2}
    shortest = seeker(seek=numbers(a1=-1))
    state = make_state(EIGHTS, *rows, {"g": 8})
    assert shortest(state, 0) == ("forward", 3, 1)
    assert seeker()(state, 0)[:2] == ("place", 3), "it waits nowhere, and 0.1 speaks for its own"
    state.boundary = 3
    assert shortest(state, 0) == ("forward", 3, 1), "no news is needed"
    state.forwards[3] = 2
    assert shortest(state, 0)[:2] == ("place", 3)
    # A full queue.
    away, waits = seeker(seek=numbers(a2=-1)), {"home": 1, "g": 8}
    assert away(make_state(EIGHTS, *rows, waits), 0) == ("forward", 3, 1)
    assert away(make_state(EIGHTS, *rows, waits, queue_slots=1), 0)[:2] == ("place", 3)


def test_a_scheduler_that_has_waited_starts_what_comes_at_the_next_boundary():
    two, jobs = make_cluster([[[8]]] * 2), make_jobs({"g": 2})
    for max_forwards, start_s, there in ((0, 0, 0), (1, 60, 1), (2, 120, 0)):
        away = run(two, jobs, make_profiles({}), seeker(seek=numbers(a2=-1)), max_forwards=max_forwards)
        assert (away.start_s[0], away.partition[0]) == (start_s, there)


def test_what_does_not_go_with_it():
    for wrong in ({"preempt": True, "order": "srtf"}, {"backfill": False}, {"forward": "forward"}, {"forward": "stay"}):
        with pytest.raises(ValueError):
            seeker(**wrong)
