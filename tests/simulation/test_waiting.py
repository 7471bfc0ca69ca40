"""`greedy-wait` waits for what a job can have, for no longer than it saves, and keeps GPUs where that is worth it."""

import numpy as np
import pytest

from jaxsched.cluster.build import build
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topology import leaf_spine
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
    options = {"gpus_per_worker": 8, "model": MODEL_NAMES.index("vgg16")}
    jobs = make_job_list(np.array(submit_s), np.array(duration_s), np.array(servers), **options)
    found = simulate(parse_all(policies), cluster, [jobs], Settings(record_placements=True, **settings))
    return [found[name][0] for name in policies]


def test_a_gang_wider_than_a_rack_does_not_wait_for_a_place_that_does_not_exist():
    """It would be on two racks in the empty cluster, too."""
    ahead, patient = played([0.0, MINUTE], [HOUR, 200 * HOUR], [1, 3])
    assert ahead.start_s.tolist() == [0.0, MINUTE]
    assert patient.start_s[1] >= HOUR


@pytest.mark.parametrize(("others_h", "gang_h", "waits"), [(1, 40, True), (1, 0.2, False), (200, 40, False)])
def test_a_gang_waits_for_a_rack_if_that_is_free_soon_enough(others_h, gang_h, waits):
    """Two servers of different racks are free; hours until one of them has its rack for itself, and of the gang."""
    begin = [0.0, 0.0, 0.0, MINUTE]
    (run,) = played(begin, [MINUTE / 2, others_h * HOUR, 300 * HOUR, gang_h * HOUR], [1, 1, 1, 2], policies=(AHEAD,))
    assert others_h * HOUR <= run.start_s[3] <= others_h * HOUR + MINUTE if waits else run.start_s[3] == MINUTE
    assert (run.run_s[3] < 1.01 * gang_h * HOUR) == waits


def test_jobs_pass_a_gang_but_not_for_ever():
    """They come one after the other, and each alone would cost the gang less than being held back costs the job."""
    begin = [0.0, 0.0, 0.0, 10 * MINUTE] + [20 * MINUTE + HOUR * i for i in range(12)]
    lasts_s = [2.9 * HOUR, 2.95 * HOUR, 3 * HOUR, 1.5 * HOUR] + [6.5 * HOUR] * 12
    free, kept = played(begin, lasts_s, [1, 1, 1, 4] + [1] * 12, policies=("pack:sjf+backfill", AHEAD))
    assert kept.start_s[4] == 20 * MINUTE and kept.start_s[3] <= 20 * MINUTE + 6.5 * HOUR + MINUTE
    assert free.start_s[3] > 20 * HOUR, "without a reservation it waits until no more come"
    assert kept.finished.all()


@pytest.mark.slower
def test_jax_looks_ahead_as_the_event_loop_does():
    """A gang that waits for a rack of its own, one that others pass until it has waited for long, and who passes it."""
    begin = [0.0, 0.0, 0.0, MINUTE, 2 * MINUTE, *(20 * MINUTE + HOUR * i for i in range(6))]
    lasts_s = [2.9 * HOUR, HOUR, 3 * HOUR, 40 * HOUR, 1.5 * HOUR, *[6.5 * HOUR] * 6]
    servers = [1, 1, 1, 2, 4, *[1] * 6]
    (loop,), (jax,) = (played(begin, lasts_s, servers, policies=(AHEAD,), engine=engine) for engine in ("auto", "jax"))
    assert jax.start_s.tolist() == loop.start_s.tolist() and jax.stats.engine == "jax" != loop.stats.engine
    assert loop.start_s[3] > MINUTE, "it waits"
    np.testing.assert_allclose(jax.run_s, loop.run_s, rtol=1e-5)
