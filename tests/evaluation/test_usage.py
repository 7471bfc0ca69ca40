import dataclasses
import math

import numpy as np
import pytest

from jaxsched.env.state import FINISHED
from jaxsched.evaluation.metrics import finish_time_fairness, goodput, group_by_end, measure_arrivals, tenant_shares
from jaxsched.simulation.outcome import Interruptions, Outcome
from jaxsched.workload.jobs import make_job_list
from tests.evaluation.test_job_metrics import STATS


def made(submit, duration, workers, start, finish, held=None, **columns) -> Outcome:
    jobs, nothing = make_job_list(submit, duration, workers, **columns), np.zeros(len(submit))
    stopped = None
    if held is not None:
        stopped = Interruptions(nothing.astype(int), np.array(held, float), nothing, nothing, nothing, nothing)
    return Outcome(
        policy="p", jobs=jobs, status=np.full(len(submit), FINISHED, np.int8), start_s=np.array(start, float),
        partition=np.zeros(len(submit), np.int16), finish_s=np.array(finish, float), workers=None, cut_off=None,
        forwards=nothing.astype(np.int8), stats=STATS, interruptions=stopped,
    )  # fmt: skip


def test_use_and_queue_over_the_arrivals_time():
    """From 0 to 100: 2 GPUs for 60 s, then 4 more for 20 s; jobs wait for 40, 70 and 0 s of it."""
    result = made([0, 10, 100], [60, 50, 30], [2, 4, 1], [40, 80, 120], [100, 160, 165])
    used, mean, most = measure_arrivals(result, 8)
    assert used == pytest.approx((2 * 60 + 4 * 20) / 800)
    assert mean == pytest.approx((40 + 70) / 100) and most == 2


def test_a_job_that_was_stopped_is_spread_out():
    """It runs from 40 to 100 and holds its GPUs for half of that."""
    used, mean, _ = measure_arrivals(made([0, 100], [30, 30], [2, 1], [40, 120], [100, 165], held=[30, 45]), 8)
    assert used == pytest.approx(2 * 30 / 800)
    assert mean == pytest.approx((40 + 30) / 100)


def test_jobs_that_all_come_at_once_have_no_arrivals_time():
    assert all(map(math.isnan, measure_arrivals(made([5, 5], [60, 50], [2, 4], [60, 60], [120, 110]), 8)))


def test_finish_time_fairness_by_hand():
    """Alone on all GPUs a job has rho 1; two gangs of 8 that follow each other on 8 GPUs have half of them each."""
    assert finish_time_fairness(made([0], [100], [8], [0], [100]), 8).tolist() == [1.0]
    first, second = finish_time_fairness(made([0, 0], [100, 100], [8, 8], [0, 100], [100, 200]), 8)
    assert first == pytest.approx(100 / (100 * 2)) and second == pytest.approx(200 / (100 * 1.5))
    narrow = finish_time_fairness(made([0, 0], [100, 100], [4, 4], [0, 0], [100, 100]), 8)
    np.testing.assert_allclose(narrow, 1.0)  # either has as many GPUs as its share


def test_goodput_shares_and_ends():
    result = made([0, 0, 0], [100, 50, 30], [2, 4, 1], [0, 0, 0], [110, 60, 30], tenant=[0, 1, 1], ended=[0, 2, 1])
    assert goodput(result) == pytest.approx(200 / (220 + 240 + 30))
    assert tenant_shares(result) == pytest.approx({"0": 220 / 490, "1": 270 / 490})
    named = dataclasses.replace(result.jobs, tenant_name=np.array(["lab9", "lab1", "lab1"]))
    assert tenant_shares(dataclasses.replace(result, jobs=named)) == pytest.approx(
        {"lab9": 220 / 490, "lab1": 270 / 490}
    )
    ends = group_by_end(result)
    assert list(ends) == ["completed", "cancelled", "failed"]
    assert ends["failed"] == pytest.approx({"jobs": 1, "jct_mean_s": 60, "gpu_h": 240 / 3600})
    all_through = dataclasses.replace(result, jobs=dataclasses.replace(result.jobs, ended=np.zeros(3, np.int32)))
    assert goodput(all_through) == pytest.approx(430 / 490) and list(group_by_end(all_through)) == ["completed"]
