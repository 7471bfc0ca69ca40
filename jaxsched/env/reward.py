"""Rewards: what is integrated over time, and the weights that turn it into one number per scheduler.

- `jobs`: number of jobs in the partition (queued and running). Its integral over a run is the sum of JCTs, so its
  negative is the objective itself.
- `lost`: queued jobs plus, for every running job, `1 - 1/slowdown`: time that an ideal cluster would not have spent.
- `progress`: share of a job's whole work done per interval, summed over running jobs.

`reward = -w.jobs jobs - w.lost lost + w.progress progress`, each integrated over the step, in intervals.
"""

import chex
import jax.numpy as jnp
from jax import Array

from jaxsched.env.state import RewardWeights, State


@chex.dataclass(frozen=True)
class Flow:
    """Integrals over a stretch of time, float32[P] each, in intervals (`progress` in jobs)."""

    jobs: Array
    lost: Array
    progress: Array


def no_flow(state: State) -> Flow:
    """All zero."""
    zero = jnp.zeros(state.queue.shape[0], jnp.float32)
    return Flow(jobs=zero, lost=zero, progress=zero)


def flow_rate(state: State) -> Flow:
    """The integrands at the present moment, per partition; `progress` is per second, the others per interval."""
    running = state.running
    active = (running.job >= 0).astype(jnp.float32)
    queued = (state.queue >= 0).sum(-1).astype(jnp.float32)
    speed = 1.0 / running.slowdown
    return Flow(
        jobs=queued + active.sum(-1),
        lost=queued + (active * (1.0 - speed)).sum(-1),
        progress=(active * speed / jnp.maximum(running.duration_s, 1e-9)).sum(-1),
    )


def reward(weights: RewardWeights, flow: Flow) -> Array:
    """float32[P]: the weighted sum."""
    return weights.progress * flow.progress - weights.jobs * flow.jobs - weights.lost * flow.lost
