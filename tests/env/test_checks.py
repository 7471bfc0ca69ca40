"""The debug checks find what they are for, and say where it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from jaxsched.cluster.presets import get_cluster
from jaxsched.env.checks import check_state
from jaxsched.env.environment import initial_state
from jaxsched.env.state import RUNNING, EnvConfig, make_params
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.simulation.settings import Settings
from jaxsched.workload.jobs import make_job_list, to_table
from tests.support.evaluation_jobs import some_jobs

PARAMS = make_params(get_cluster("leaf-spine-2", 2))


def with_workers(occupants, place, slot, workers):
    """The occupants with a job at a place of the first group."""
    at = (0, 0, 0, place)
    return occupants.replace(slot=occupants.slot.at[at].set(slot), workers=occupants.workers.at[at].set(workers))


@pytest.fixture(scope="module")
def found():
    """`state -> what the checks say of it`, None if nothing."""
    check = jax.jit(checkify.checkify(lambda state: check_state(PARAMS, state, jnp.int32(3))))
    return lambda state: check(state)[0].get()


@pytest.fixture(scope="module")
def state():
    """Job 0 runs in partition 0 on 2 GPUs of one group, job 1 is queued in partition 1."""
    jobs = to_table(make_job_list([0.0, 0.0], [600.0, 600.0], [2, 1]), 60.0)
    state = initial_state(EnvConfig(running_slots=4, queue_slots=4, rounds=4), PARAMS, jobs)
    running = state.running
    return state.replace(
        queue=state.queue.at[0].set(-1),
        free=state.free.at[0, 0, 0].add(-2),
        running=running.replace(
            job=running.job.at[0, 1].set(0),
            occupants=with_workers(running.occupants, place=0, slot=1, workers=2),
            gpus_per_worker=running.gpus_per_worker.at[0, 1].set(1),
            remaining_s=running.remaining_s.at[0, 1].set(600.0),
            slowdown=running.slowdown.at[0, 1].set(1.0),
        ),
        records=state.records.replace(status=state.records.status.at[0].set(RUNNING)),
    )


def test_nothing_is_wrong(found, state):
    assert state.queue[1, 0] == 1 and found(state) is None


def test_shared_gpus_hold_what_their_jobs_ask_for(found, state):
    """Job 0 on two whole GPUs, job 1 with 400 thousandths of a third one, which is no longer free."""
    jobs = to_table(make_job_list([0.0, 0.0], [600.0, 600.0], [2, 1], milli=[1000, 400]), 60.0)
    blank = initial_state(EnvConfig(running_slots=4, queue_slots=4, rounds=4, shared_gpus=4), PARAMS, jobs)
    running = state.running.replace(
        job=state.running.job.at[0, 2].set(1),
        occupants=with_workers(state.running.occupants, place=1, slot=2, workers=1),
        gpus_per_worker=state.running.gpus_per_worker.at[0, 2].set(1),
        gpu=blank.running.gpu.at[0, 2].set(3),
        stretch=blank.running.stretch,
    )
    shared = state.replace(
        jobs=blank.jobs,
        queue=jnp.full_like(blank.queue, -1),
        shared=blank.shared.at[0, 0, 0, 3].set(400),
        free=state.free.at[0, 0, 0].add(-1),
        running=running,
    )
    assert found(shared) is None
    for wrong in (
        shared.replace(shared=shared.shared.at[0, 0, 0, 3].set(399)),
        shared.replace(shared=blank.shared, free=state.free),
        shared.replace(free=state.free),
        shared.replace(running=running.replace(gpu=running.gpu.at[0, 2].set(2))),
    ):
        assert "GPUs that are lost or given twice: partition 0" in found(wrong)


FAULTS = {
    "a number that is not finite: job 0": lambda s: s.replace(
        running=s.running.replace(remaining_s=s.running.remaining_s.at[0, 1].set(jnp.nan))
    ),
    "a load that is not finite: partition 1": lambda s: s.replace(total=s.total.at[1, 0].set(jnp.inf)),
    "GPUs that are lost or given twice: partition 1": lambda s: s.replace(free=s.free.at[1, 0, 0].add(-1)),
    "GPUs that are lost or given twice: partition 0": lambda s: s.replace(
        running=s.running.replace(occupants=with_workers(s.running.occupants, place=0, slot=1, workers=3))
    ),
    "a job that is lost, or in two places: job 1": lambda s: s.replace(queue=s.queue.at[1].set(-1)),
    "a job that is lost, or in two places: job 0": lambda s: s.replace(queue=s.queue.at[0, 2].set(0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_placed(found, state, fault):
    said = found(FAULTS[fault](state))
    assert said is not None and f"{fault} of environment 3, boundary 0, round 0" in said


@pytest.mark.slower
def test_checked_runs_are_the_runs_themselves():
    jobs = some_jobs(3, 20)
    plain, checked = (
        compare(get_cluster("leaf-spine-2", 2), [jobs], ["pack"], Settings(engine="jax", debug_checks=checks))
        for checks in (False, True)
    )
    one, other = (comparison.rows[0].outcomes[0] for comparison in (plain, checked))
    np.testing.assert_array_equal(one.start_s, other.start_s)
    np.testing.assert_array_equal(one.finish_s, other.finish_s)


@pytest.mark.long
def test_the_first_fault_ends_the_run(monkeypatch):
    def spoilt(params, state, environment):
        check_state(params, state.replace(free=state.free.at[0, 0, 0].add(-1 * (state.clock >= 3))), environment)

    monkeypatch.setattr("jaxsched.simulation.jax_program.check_state", spoilt)
    settings = Settings(engine="jax", debug_checks=True)
    with pytest.raises(
        UserError, match=r"'pack': GPUs .*: partition 0 of environment 0, boundary \d+, round \d+ "
    ) as error:
        compare(get_cluster("leaf-spine-2", 2), [some_jobs(3, 20)], ["pack"], settings)
    assert "\n" not in str(error.value)
