"""16 of 18: gangs in racks that are NVLink domains, under `+racks` (docs/semantics.md, section 7, "Racks")."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.env.observation import Choice
from jaxsched.env.queues import Discipline
from jaxsched.errors import UserError
from jaxsched.learning.config import NetworkConfig, QueueView, TrainConfig, validate
from jaxsched.policies.menu import menu_policy
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list

CLUSTER = get_cluster("nvl72-72")  # four racks of 18 trays


def trays(policy: str, gpus: list[int], engine: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """Trays that each job has in each rack, and when it started; jobs come one a minute and run for a day."""
    count = len(gpus)
    jobs = make_job_list(np.arange(count) * 60.0, np.full(count, 86_400.0), gpus)
    settings = Settings(engine=engine, record_placements=True, interference="none")
    (outcome,) = simulate([parse(policy)], CLUSTER, [jobs], settings)[policy]
    assert outcome.workers is not None
    used = outcome.workers > 0
    return np.stack([used[:, 18 * r : 18 * r + 18].sum(1) for r in range(4)], 1), outcome.start_s


@pytest.mark.parametrize("engine", ["compiled", pytest.param("jax", marks=pytest.mark.slower)])
def test_large_jobs_take_16_of_18_trays_and_small_ones_what_is_spare(engine):
    """64 GPUs, 128, then small ones: the spare trays of racks in use go first, and the fourth rack stays whole."""
    found, _ = trays("pack:fifo+backfill+racks", [64, 128, 4, 8, 4, 4], engine)
    assert found[0].tolist() == [16, 0, 0, 0] and found[1].tolist() == [0, 16, 16, 0]
    assert found[2:].sum(0).tolist() == [2, 2, 1, 0]


def test_a_small_job_goes_beside_a_small_job_and_not_into_a_whole_rack():
    found, _ = trays("pack:fifo+backfill+racks", [4, 8, 16, 40])
    assert found.sum(0).tolist() == [17, 0, 0, 0]
    plain, _ = trays("load-balance:fifo+backfill", [4, 8, 16, 40])
    assert (plain.sum(0) > 0).sum() == 4


def test_who_needs_a_whole_rack_waits_for_one():
    """Four racks are broken up by jobs of 12 GPUs; 64 GPUs would fit three of them together."""
    broken = [48] * 4 + [64]
    found, start_s = trays("pack:fifo+backfill+racks", broken)
    assert (found[:4] > 0).sum(1).tolist() == [1] * 4 and start_s[4] >= 86_400
    assert found[4].max() == 16
    found, start_s = trays("pack:fifo+backfill", broken)
    assert start_s[4] < 600 and (found[4] > 0).sum() > 1


def test_gangs_that_need_spare_trays_get_them():
    found, _ = trays("pack:fifo+backfill+racks", [288])
    assert found.tolist() == [[18] * 4]


def test_a_rest_goes_to_a_rack_in_use():
    """96 GPUs after 4: 16 trays of the rack that is in use, which leaves one spare, and 8 of the next."""
    found, _ = trays("pack:fifo+backfill+racks", [4, 96])
    assert found.tolist() == [[1, 0, 0, 0], [16, 8, 0, 0]]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("greedy-wait:racks", "'racks' is not for greedy-wait and match"),
        ("pack:las+preempt+racks", "racks: does not go with preempt"),
    ],
)
def test_what_does_not_go_with_racks_is_refused(name, says):
    with pytest.raises(UserError, match=says):
        parse(name)


def test_who_looks_ahead_knows_nothing_of_racks():
    with pytest.raises(UserError, match="racks: not with looks_ahead"):
        validate(TrainConfig(queue=QueueView(racks=True), network=NetworkConfig(looks_ahead=True)))
    with pytest.raises(UserError, match="racks: not with looks_ahead"):
        menu_policy("mine", lambda *args: None, {}, Discipline(racks=True), looks_ahead=True)


@pytest.mark.slower
def test_schedulers_that_choose_from_menus_are_offered_the_chosen_racks_only():
    """Whatever they choose, here the last entry: 128 GPUs on 16 trays of two racks, small jobs on the spare ones."""

    def last(key, offered, weights):
        mask = offered.menu.mask
        return Choice(act=mask.any(-1), option=mask.shape[-1] - 1 - jnp.argmax(mask[:, ::-1], -1))

    gpus, settings = [64, 128, 4, 8, 4, 4], Settings(record_placements=True, interference="none")
    jobs = make_job_list(np.arange(6) * 60.0, np.full(6, 86_400.0), gpus)
    for racks in (True, False):
        policy = menu_policy("last", last, {}, Discipline(order="fifo", backfill=True, racks=racks))
        (run,) = simulate([policy], CLUSTER, [jobs], settings)["last"]
        assert run.workers is not None
        held = np.stack([(run.workers > 0)[:, 18 * r : 18 * r + 18].sum(1) for r in range(4)], 1)
        large = [sorted(row) for row in held[:2].tolist()]
        assert (large == [[0, 0, 0, 16], [0, 0, 16, 16]]) == racks
        assert bool((held[2:].sum(0)[held[:2].sum(0) == 0] == 0).all()) or not racks  # the fourth rack stays whole
