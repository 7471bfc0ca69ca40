"""Rewards: what is integrated over time, and the weights that turn it into one number per scheduler.

- `jobs`: number of jobs in the partition (queued and running). Its integral over a run is the sum of JCTs, so its
  negative is the objective itself.
- `lost`: queued jobs plus, for every running job, `1 - 1/slowdown`: time that an ideal cluster would not have spent.
  With `interference` off a running job loses nothing, whatever slows it down: only waiting counts.
- `progress`: share of a job's whole work done per interval, summed over running jobs. It sums to 1 per job, however
  slow it was.

`reward = -w.jobs jobs - w.lost lost + w.progress progress`, each integrated over the step, in intervals.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float32

from jaxsched.env.state import RewardWeights
from jaxsched.pytree import Pytree


class RewardTerms(Pytree):
    """Integrals over a stretch of time, in intervals (`progress` in jobs)."""

    jobs: Float32[Array, "*P"]
    lost: Float32[Array, "*P"]
    progress: Float32[Array, "*P"]


def zero_terms(like: Float32[Array, "P"]) -> RewardTerms:
    """All zero, in the shape of `like`."""
    zero = jnp.zeros_like(like)
    return RewardTerms(jobs=zero, lost=zero, progress=zero)


def reward_rates(
    active: Bool[Array, "*P R"],
    slowdown: Float32[Array, "*P R"],
    duration_s: Float32[Array, "*P R"],
    queued: Float32[Array, "*P"],
    interference: Bool[Array, ""] | bool,
) -> RewardTerms:
    """The integrands of a moment per partition; `progress` is per second, the others per interval.

    Args: `queued`: number of jobs; `interference` as in `RewardWeights`.
    """
    running = active.astype(jnp.float32)
    speed = 1.0 / slowdown
    return RewardTerms(
        jobs=queued + running.sum(-1),
        lost=queued + jnp.where(interference, running * (1.0 - speed), 0.0).sum(-1),
        progress=(running * speed / jnp.maximum(duration_s, 1e-9)).sum(-1),
    )


def accumulate(
    terms: RewardTerms, rate: RewardTerms, seconds: Float32[Array, ""], interval_s: Float32[Array, ""]
) -> RewardTerms:
    """`terms` after `seconds` more at `rate`."""
    share = seconds / interval_s
    return RewardTerms(
        jobs=terms.jobs + share * rate.jobs,
        lost=terms.lost + share * rate.lost,
        progress=terms.progress + seconds * rate.progress,
    )


def reward(weights: RewardWeights, terms: RewardTerms) -> Float32[Array, "P"]:
    """The weighted sum."""
    return weights.progress * terms.progress - weights.jobs * terms.jobs - weights.lost * terms.lost
