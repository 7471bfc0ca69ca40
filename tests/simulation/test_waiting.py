"""`greedy-wait` waits for what a job can have, for no longer than it saves, and keeps GPUs where that is worth it."""

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError
from jaxsched.policies.registry import parse_all
from jaxsched.simulation.outcome import Outcome
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.models import MODEL_NAMES

MINUTE, HOUR = 60.0, 3600.0
AHEAD, BY_PATIENCE = "greedy-wait", "greedy-wait:p1"


def played(submit_s, duration_s, servers, count: int = 4, policies=(AHEAD, BY_PATIENCE), **settings) -> list[Outcome]:
    """Gangs of so many whole servers of 8 GPUs, of a loud model, on racks of two with thin uplinks."""
    cluster = build([Server(groups=(8,))] * count, leaf_spine(count, 2, oversubscription=8.0), 1)
    jobs = make_job_list(
        submit_s,
        duration_s,
        np.full(len(submit_s), 8),
        workers=np.array(servers),
        model=MODEL_NAMES.index("vgg16"),
    )
    found = simulate(parse_all(policies), cluster, [jobs], Settings(record_placements=True, **settings))
    return [found[name][0] for name in policies]


def test_a_gang_wider_than_a_rack_does_not_wait_for_a_place_that_does_not_exist():
    """It would be on two racks in the empty cluster, too."""
    ahead, patient = played([0.0, MINUTE], [HOUR, 200 * HOUR], [1, 3])
    assert ahead.start_s.tolist() == [0.0, MINUTE]
    assert patient.start_s[1] >= HOUR


def test_a_gang_waits_for_a_rack_if_that_is_free_soon_and_a_short_one_does_not():
    """Two servers of different racks are free."""
    times = [0.0, 0.0, MINUTE, MINUTE]
    (long,) = played(times[:3], [HOUR, 40 * HOUR, 40 * HOUR], [1, 1, 2], policies=(AHEAD,))
    (short,) = played(times[:3], [HOUR, 40 * HOUR, 10 * MINUTE], [1, 1, 2], policies=(AHEAD,))
    assert HOUR <= long.start_s[2] <= HOUR + MINUTE and short.start_s[2] == MINUTE
    assert long.run_s[2] < 1.01 * 40 * HOUR and short.run_s[2] > 1.01 * 10 * MINUTE
    (later,) = played(times[:3], [30 * HOUR, 40 * HOUR, 40 * HOUR], [1, 1, 2], policies=(AHEAD,))
    saved_s = later.run_s[2] - long.run_s[2]
    assert later.start_s[2] == MINUTE and saved_s < 30 * HOUR, "what waiting could save is less than the wait"


def test_jobs_pass_a_gang_but_not_for_ever():
    """Jobs of one server and twice the gang's time come one after the other; each alone would cost it little."""
    count = 12
    submit_s = [0.0, 0.0, 0.0, 10 * MINUTE] + [20 * MINUTE + HOUR * i for i in range(count)]
    duration_s = [1.9 * HOUR, 2.5 * HOUR, 3 * HOUR, 2 * HOUR] + [5 * HOUR] * count
    servers = [1, 1, 1, 4] + [1] * count
    free, kept = played(submit_s, duration_s, servers, policies=("pack:sjf+backfill", AHEAD))
    assert kept.start_s[3] < free.start_s[3], "without a reservation it waits until no more come"
    assert kept.finished.all()


def test_jax_says_that_it_does_not_look_ahead():
    with pytest.raises(UserError, match="greedy-wait that looks ahead"):
        played([0.0], [HOUR], [1], policies=(AHEAD,), engine="jax")
