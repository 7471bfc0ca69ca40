"""The oracle's clock, queues and forwarding, against numbers worked out with a pencil."""

import math

import pytest

from tests.oracle.cases import FIFO, RING, TWO, close, make_cluster, make_jobs, make_profiles, run, scripted
from tests.oracle.policies import make_policy

# --------------------------------------------------------------------------------------------------------------- time


def test_boundaries():
    # 4 GPUs. Job 0 holds them until 70, so job 1 (submitted at 60 exactly) starts at 120; job 2 behind it at 240.
    jobs = make_jobs({"g": 4, "duration": 70}, {"g": 4, "submit": 60}, {"g": 4, "submit": 61, "duration": 1})
    r = run(make_cluster([[[4]]]), jobs, make_profiles({}), FIFO)
    close(r.start_s, [0, 120, 240])
    close(r.finish_s, [70, 220, 241])


def test_a_completion_on_a_boundary_frees_its_gpus_there():
    jobs = make_jobs({"g": 4, "duration": 60}, {"g": 4})
    close(run(make_cluster([[[4]]]), jobs, make_profiles({}), FIFO).start_s, [0, 60])


def test_idle_boundaries_are_skipped_to_the_right_one():
    for submit, start in ((6e6, 6e6), (6e6 + 0.5, 6e6 + 60), (6e6 - 0.5, 6e6)):
        r = run(TWO, make_jobs({}, {"submit": submit}), make_profiles({}), FIFO)
        assert r.start_s[1] == start


def test_rounds_limit_the_placements_of_a_boundary():
    jobs = make_jobs(*[{}] * 4)
    close(run(TWO, jobs, make_profiles({}), FIFO, rounds=3).start_s, [0, 0, 0, 60])


def test_slots():
    # One running slot: one after the other. Job 0 ends at 100, so the next starts at 120, the third at 240.
    jobs = make_jobs({}, {}, {"home": 1})
    cluster = make_cluster([[[4]], [[4]]])
    close(run(cluster, jobs, make_profiles({}), FIFO, running_slots=1).start_s, [0, 120, 0])
    # One queue slot: job 1 stays in the backlog until the next boundary, and job 2 of the other partition behind it.
    close(run(cluster, jobs, make_profiles({}), FIFO, queue_slots=1).start_s, [0, 60, 60])


def test_horizon():
    jobs = make_jobs({"g": 4}, {"g": 4}, {"g": 4}, {"g": 5}, {"g": 4, "submit": 1000})
    r = run(make_cluster([[[4]]]), jobs, make_profiles({}), FIFO, horizon_s=180)
    assert r.status == ["finished", "running", "queued", "rejected", "backlog"]
    close(r.start_s, [0, 120, math.nan, math.nan, math.nan])
    close(r.finish_s, [100, math.nan, math.nan, math.nan, math.nan])
    assert list(r.partition) == [0, 0, 0, -1, -1]


def test_rejection_and_the_next_partition_that_could_hold_it():
    # Partitions of 2, 4 and 8 GPUs in one group. g = 3 from home 0 -> 1; W = 6 of g = 1 from home 0 -> 2, from home 5
    # (= 2) stays; g = 3, W = 3 fits nowhere: floor(8/3) = 2.
    cluster = make_cluster([[[2]], [[4]], [[8]]])
    jobs = make_jobs({"g": 3}, {"W": 6}, {"W": 2, "home": 5}, {"g": 3, "W": 3})
    r = run(cluster, jobs, make_profiles({}), FIFO)
    assert r.status == ["finished"] * 3 + ["rejected"] and list(r.partition) == [1, 2, 2, -1]


# --------------------------------------------------------------------------------------------------------- forwarding


TWINS = make_cluster([[[2]], [[2]]])


def test_forward():
    # Round 1: 0 places job 0; 1 has nothing and waits. Round 2: job 1 goes to 1, which sees it at the next boundary.
    jobs = make_jobs({"g": 2}, {"g": 2})
    r = run(TWINS, jobs, make_profiles({}), make_policy("first-fit", "fifo", forward="forward"))
    assert list(r.partition) == [0, 1]
    close(r.start_s, [0, 60])
    r = run(TWINS, jobs, make_profiles({}), FIFO)
    assert list(r.partition) == [0, 0]
    close(r.start_s, [0, 120])
    r = run(TWINS, jobs, make_profiles({}), make_policy("first-fit", "fifo", forward="forward"), max_forwards=0)
    close(r.start_s, [0, 120])


def test_forward_goes_to_the_emptiest_partition_with_an_empty_queue():
    # Partition 1 has 2 free GPUs, 2 and 3 have 4: job 1 goes to 2.
    cluster = make_cluster([[[4]], [[2]], [[4]], [[4]]])
    r = run(cluster, make_jobs({"g": 4}, {"g": 2}), make_profiles({}), make_policy("pack", "fifo", forward="forward"))
    assert list(r.partition) == [0, 2]


def test_forwards_in_one_round_to_a_queue_with_one_slot():
    # Both schedulers forward to 2 in the first round; the lower one gets the slot, the other has waited.
    def policy(state, p):
        if p < 2 and state.now == 0 and state.queue[p]:
            return "forward", state.queue[p][0], 2
        return FIFO(state, p)

    cluster = make_cluster([[[2]], [[2]], [[2]]])
    jobs = make_jobs({"home": 0}, {"home": 1})
    r = run(cluster, jobs, make_profiles({}), policy, queue_slots=1)
    assert list(r.partition) == [2, 1]
    close(r.start_s, [60, 60])


def test_a_job_is_forwarded_at_most_max_forwards_times():
    def policy(state, p):
        return ("forward", state.queue[p][0], 1 - p) if state.queue[p] else ("wait",)

    # Round 1: 0 -> 1, but 1 has waited. Boundary 60: 1 -> 0; 0 has waited. Then nobody may move it.
    r = run(TWINS, make_jobs({}), make_profiles({}), policy)
    assert r.status == ["queued"] and r.partition[0] == 0
    r = run(TWINS, make_jobs({}), make_profiles({}), policy, max_forwards=3)
    assert r.status == ["queued"] and r.partition[0] == 1


def test_an_illegal_action_is_a_wait():
    def policy(state, p):
        return ("place", state.queue[p][0], {0: 3}, {}) if state.queue[p] else ("wait",)

    assert run(TWINS, make_jobs({"W": 3}), make_profiles({}), policy).status == ["rejected"]
    assert run(TWINS, make_jobs({"W": 2}), make_profiles({}), policy).status == ["queued"]


def test_only_a_queued_job_may_be_placed_on_free_gpus_in_a_free_slot():
    # Job 1 arrives at 120; before that its placement is a wait. Job 0 is never placed.
    def early(state, p):
        return "place", 1, {0: 1}, {}

    r = run(TWO, make_jobs({}, {"submit": 100}), make_profiles({}), early)
    assert r.status == ["queued", "finished"] and r.start_s[1] == 120
    # 2 workers of 2 GPUs do not fit a group of 2.
    r = run(
        make_cluster([[[2], [2]]]),
        make_jobs({"W": 2, "g": 2}),
        make_profiles({}),
        lambda state, p: ("place", 0, {0: 2}, {}),
    )
    assert r.status == ["queued"]
    policy = scripted({0: {0: 1}, 1: {1: 1}})
    assert list(run(TWO, make_jobs({}, {}), make_profiles({}), policy, running_slots=1).start_s) == [0, 120]


def test_forward_passes_over_a_partition_with_a_queue():
    # Partition 1 has 2 free GPUs but its own second job (4 GPUs) waits there; partition 2 has an empty queue.
    jobs = make_jobs({"g": 4}, {"g": 2}, {"g": 2, "home": 1}, {"g": 4, "home": 1})
    cluster = make_cluster([[[4]], [[4]], [[2]]])
    r = run(cluster, jobs, make_profiles({}), make_policy("first-fit", "fifo", forward="forward"))
    assert r.partition[1] == 2


def test_unordered_jobs_are_refused():
    with pytest.raises(ValueError, match="order"):
        run(TWO, make_jobs({"submit": 1}, {"submit": 0}), RING, FIFO)
