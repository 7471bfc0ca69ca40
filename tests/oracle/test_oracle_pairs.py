"""Factors of pairs of models, what is seen of them, and `match`, against numbers worked out with a pencil."""

import numpy as np
import pytest

from tests.oracle.cases import close, make_cluster, make_jobs, make_profiles, run
from tests.oracle.pairs import Pairs
from tests.oracle.policies import make_policy
from tests.oracle.preemption import Preemption

# Of a job's model (row) and a co-runner's.
FACTOR = np.array([[1.0, 0.5, 1.5], [3.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
THREE = make_profiles({}, {}, {})  # models that differ in nothing but their factors
ONE_GPU = make_cluster([[[1]]])
PACK = make_policy("pack")


def play(jobs, policy, cluster=ONE_GPU, **more):
    """Each co-runner is a second more per step (kappa_gpu 1), times the factors."""
    more = {"interference": "analytic", "pair_factors": FACTOR, **more}
    return run(cluster, jobs, THREE, policy, **more)


# ------------------------------------------------------------------------------------------------------------- factors


def test_a_factor_multiplies_what_a_co_runner_adds():
    # s = 2. Model 0 beside 1: 1 + 0.5 = 1.5. Model 1 beside 0: 1 + 3 = 4. Job 0 is done at 150; job 1 has done 37.5 s
    # of its 40 by then, and then runs alone.
    jobs = make_jobs({"milli": 500}, {"milli": 500, "model": 1, "duration": 40})
    close(play(jobs, PACK).finish_s, [150, 152.5])


def test_among_three_the_factor_is_the_mean():
    # s = 3. Model 0: the mean of 0.5 and 1.5 is 1, so 3. Model 1: that of 3 and 1 is 2, so 1 + 2 x 2 = 5. Model 2: that
    # of 2 and 1 is 1.5, so 4. All are done at 300.
    jobs = make_jobs(*({"milli": 300, "model": m, "duration": x} for m, x in enumerate((100, 60, 75))))
    close(play(jobs, PACK).finish_s, [300, 300, 300])


# -------------------------------------------------------------------------------------------------------- what is seen


def test_what_is_seen():
    pairs = Pairs(FACTOR)
    assert (pairs.believed(True) == 1).all() and pairs.believed(False) is None
    pairs.note(0, [1], 60.0)
    close(pairs.believed(True)[0], [1, 0.5, 1])
    # 120 s beside 1 and 2, f = 1: 60 s for each. Of (0, 1) half of the time was 0.5, half 1.
    pairs.note(0, [1, 2], 120.0)
    close(pairs.seen_s[0], [0, 120, 60])
    close(pairs.believed(True), [[1, 0.75, 1], [1, 1, 1], [1, 1, 1]])
    # Two co-runners of one model: all the seconds are its pair's.
    pairs.note(1, [0, 0], 10.0)
    close(pairs.seen_s[1], [10, 0, 0])
    close(pairs.believed(True)[1], [3, 1, 1])
    assert pairs.believed(False) is None
    known = Pairs(FACTOR, known=True)
    assert (known.believed(True) == FACTOR).all() and (known.believed(False) == FACTOR).all()


def watched(policy, boundary_s):
    """The policy, and what has been seen at a boundary: seconds and factors."""
    seen = []

    def watching(state, p):
        if state.now == boundary_s and not seen:
            seen.extend([state.pairs.seen_s.copy(), state.believed(True)])
        return policy(state, p)

    return watching, seen


WANTS_ALL = {"submit": 1}  # waits for a whole GPU, so that there is something to decide at every boundary


def test_what_is_seen_in_a_run():
    # Three until 40, when job 2 is done (s = 3, f = 1.5: 10 s take four times as long): 20 s for each pair. Then two.
    rows = ({"milli": 300, "model": m, "duration": x} for m, x in enumerate((1000, 1000, 10)))
    policy, seen = watched(PACK, 60.0)
    play(make_jobs(*rows, WANTS_ALL), policy, horizon_s=61.0)
    close(seen[0], [[0, 40, 20], [40, 0, 20], [20, 20, 0]])
    # Job 0: f = 1 beside both, then 0.5. Job 1: 2, then 3.
    close(seen[1], [[1, 0.75, 1], [2.5, 1, 2], [1.5, 1.5, 1]])


def test_restarts_are_seen():
    # Job 0 is stopped and started again at 60, and restarts until 160.
    def stops_once(state, p):
        again = state.now == 60 and state.stops[0] == 0
        return ("stop", [0]) if again else PACK(state, p)

    jobs = make_jobs({"milli": 500, "duration": 900}, {"milli": 500, "model": 1, "duration": 900}, WANTS_ALL)
    policy, seen = watched(stops_once, 120.0)
    done = play(jobs, policy, horizon_s=121.0, preemption=Preemption(restart_s=100.0))
    assert done.stops.tolist() == [1, 0, 0]
    close(seen[0], [[0, 120, 0], [120, 0, 0], [0, 0, 0]])
    close(seen[1], [[1, 0.5, 1], [3, 1, 1], [1, 1, 1]])


# --------------------------------------------------------------------------------------------------------------- match


# Model 1 is four times as slow beside model 0; models 0 and 2 do not notice each other.
LIKES = np.array([[1.0, 1.0, 0.0], [3.0, 1.0, 1.0], [0.0, 1.0, 1.0]])


@pytest.mark.parametrize(("known", "starts"), [(True, [0, 180, 60]), (False, [0, 60, 300])])
def test_match_takes_the_pair_that_suits(known, starts):
    # At 60, 100 s are left of job 0. If the factors are known, `eff` of job 1 is 4 + 100 (2 - 1) / 100 = 5, and of job
    # 2 it is 1, times sqrt(120 / 100). If they are not: 2 + 1 = 3, and 2 + 100/120 = 2.833, times that root: 3.10.
    jobs = make_jobs(
        {"milli": 500, "duration": 160},
        {"milli": 500, "duration": 100, "model": 1, "submit": 1},
        {"milli": 500, "duration": 120, "model": 2, "submit": 1},
    )
    policy = make_policy("match", "sjf", backfill=True)
    close(play(jobs, policy, pair_factors=LIKES, pairs_known=known).start_s, starts)


@pytest.mark.parametrize("name", ["match", "greedy-wait"])
@pytest.mark.parametrize("observe", [True, False])
def test_who_observes_does_not_repeat_a_bad_pair(name, observe):
    # Job 1 is done at 40; by then job 0 has done 20 s, and at 60 s 100 s are left of it. It has been seen that model 1
    # is four times as slow beside model 0: 4 + 100/100 = 5 for job 2. Who has not looked takes it to be 3. Job 3, which
    # nobody knows: 2 + 100/110 = 2.909; in `match` times sqrt(110 / 100), 3.05.
    jobs = make_jobs(
        {"milli": 500, "duration": 140},
        {"milli": 500, "duration": 10, "model": 1},
        {"milli": 500, "duration": 100, "model": 1, "submit": 1},
        {"milli": 500, "duration": 110, "model": 2, "submit": 1},
    )
    policy = make_policy(name, "sjf", backfill=True, threshold=3.0, patience=0.0, observe=observe)
    start_s = play(jobs, policy, pair_factors=LIKES).start_s
    assert start_s.tolist()[:2] == [0, 0]
    first, second = (3, 2) if observe else (2, 3)
    assert start_s[first] == 60 < start_s[second]


GROUPS = make_cluster([[[3, 2, 2]]])


def test_the_gpus_that_match_looks_at():
    # Where nobody slows another down the first candidate is taken: a shared GPU with enough left, else a free one of
    # the group with the fewest, of groups 1 and 2 the first.
    policy, jobs = make_policy("match", "area", backfill=True), make_jobs(*[{"milli": 400}] * 4)
    shared = play(jobs, policy, GROUPS, interference="none")
    assert shared.workers == [{1: 1}, {1: 1}, {1: 1}, {1: 1}] and shared.start_s.tolist() == [0] * 4
    # Where they do, all take free GPUs: both of group 1, then those of group 2.
    alone = play(jobs, policy, GROUPS)
    assert alone.workers == [{1: 1}, {1: 1}, {2: 1}, {2: 1}]


def test_to_make_others_faster_counts_as_nothing():
    # By this law co-runners make twice as slow, however many there are. Models 0 are three times as hard on each other
    # and do not notice model 2: a third job would make both 1 + 3/2 = 2.5 times as slow instead of 1 + 3 = 4. But it
    # would be 1.1 times as slow there, and 1 on the free GPU.
    factor = np.array([[3.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.1, 1.0, 1.0]])
    match = make_policy("match", "sjf", backfill=True)

    def policy(state, p):
        j = min(state.queue[p], default=2)
        return ("place", j, {0: 1}, {}, 0) if j < 2 else match(state, p)

    jobs = make_jobs(*[{"milli": 300, "duration": 900}] * 2, {"milli": 300, "model": 2, "duration": 50, "submit": 1})
    cluster, twice = make_cluster([[[1, 1]]]), lambda gpu_type, model, others: 2.0
    assert play(jobs, policy, cluster, pair_factors=factor, pairs_known=True, law=twice).workers[2] == {1: 1}


@pytest.mark.parametrize(
    ("milli", "gpu", "starts", "finishes"),
    [
        (400, 1, 0, [100, 200, 200]),  # beside job 1, though GPU 0 has less left
        (700, 1, 120, [100, 100, 220]),  # there is too little left on it
        (400, 2, 120, [100, 100, 220]),  # it is not shared, and no GPU is free
    ],
)
def test_a_policy_may_name_the_gpu(milli, gpu, starts, finishes):
    names = {0: 0, 1: 1, 2: gpu}  # job 1 would fit beside job 0

    def policy(state, p):
        j = min(state.queue[p], default=None)
        return ("wait",) if j is None else ("place", j, {0: 1}, {}, names[j])

    jobs = make_jobs({"milli": 600}, {"milli": 400}, {"milli": milli})
    done = play(jobs, policy, make_cluster([[[2]]]))
    assert done.start_s.tolist() == [0, 0, starts]
    close(done.finish_s, finishes)
