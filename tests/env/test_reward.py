"""What rewards sum to over a run: completion times, lost time, progress (docs/semantics.md)."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.env.reward import RewardTerms, reward
from jaxsched.env.state import reward_weights
from tests.support import strategies


def run_to_the_end(case: strategies.Case, spec: str, weights):
    """The final state and the summed rewards, float64[P]."""
    case_params = case.params
    total = np.zeros(case.shape.partitions)
    clocks = []

    def watch(before, action, after, gain):
        nonlocal total
        total = total + np.asarray(gain, np.float64)
        clocks.append(int(after.clock))

    class Rewarded(strategies.Case):
        @property
        def params(self):
            return case_params.replace(reward=weights)

    rewarded = Rewarded(**{f.name: getattr(case, f.name) for f in dataclasses.fields(case)})
    return strategies.watched_run(rewarded, spec, case.shape.config(), watch), total


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_reward_sums_to_the_completion_times(seed):
    case = strategies.random_case(seed, "two", interval_s=60.0)
    state, total = run_to_the_end(case, "pack:area+backfill+forward", reward_weights(jobs=1.0))
    done = strategies.outcome(case, state)
    seen_s = np.ceil(case.jobs.submit_s / 60.0) * 60.0  # the reward starts when the scheduler first sees a job
    finished = np.isfinite(done.finish_s)
    jct_s = (done.finish_s - seen_s)[finished]
    np.testing.assert_allclose(-total.sum() * 60.0, jct_s.sum(), rtol=1e-5)
    lead_s = (seen_s - case.jobs.submit_s)[finished]
    np.testing.assert_allclose(np.asarray(state.jobs.lead_s)[: len(case.jobs)][finished], lead_s, atol=1e-3)
    assert (lead_s >= 0).all() and (lead_s < 60.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_lost_and_progress(seed):
    """`progress` sums to the number of finished jobs; `lost` to the JCT less the ideal durations."""
    case = strategies.random_case(seed, "two", interval_s=60.0)
    state, total = run_to_the_end(case, "pack:area+backfill+forward", reward_weights(progress=1.0))
    done = strategies.outcome(case, state)
    finished = np.isfinite(done.finish_s)
    np.testing.assert_allclose(total.sum(), finished.sum(), rtol=1e-4)
    _, total = run_to_the_end(case, "pack:area+backfill+forward", reward_weights(lost=1.0))
    seen_s = np.ceil(case.jobs.submit_s / 60.0) * 60.0
    lost_s = (done.finish_s - seen_s - case.jobs.duration_s)[finished].sum()
    np.testing.assert_allclose(-total.sum() * 60.0, lost_s, rtol=1e-4)
    # without interference, only waiting is lost
    _, total = run_to_the_end(case, "pack:area+backfill+forward", reward_weights(lost=1.0, interference=False))
    waited_s = (done.start_s - seen_s)[finished].sum()
    assert waited_s < lost_s
    np.testing.assert_allclose(-total.sum() * 60.0, waited_s, rtol=1e-4)


def test_reward_weights():
    terms = RewardTerms(jobs=jnp.array([2.0, 3.0]), lost=jnp.array([1.0, 0.5]), progress=jnp.array([0.25, 0.0]))
    np.testing.assert_allclose(reward(reward_weights(1.0, 10.0, 100.0), terms), [25 - 2 - 10, -3 - 5], rtol=1e-6)
