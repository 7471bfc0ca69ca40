"""Interference that no policy knows beforehand: a factor for each pair of models that share a GPU.

What the law of sharing adds to a job's time is multiplied by the factor of its model and the co-runner's. Policies see
the law, and how jobs that run get on: who runs beside whom, and how fast. What that tells is kept here, for those that
ask for it (docs/semantics.md, sections 5 and 9).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32

from jaxsched.dynamics.gpu_sharing import Sharers, mean_factor
from jaxsched.env.extensions.parts import Pairs
from jaxsched.env.state import EnvParams, State


def no_pairs() -> Pairs:
    """The law of sharing is all there is."""
    nothing = jnp.zeros((0, 0), jnp.float32)
    return Pairs(factor=nothing, seen_s=nothing, mean=nothing)


def draw_pairs(models: int, sigma: float, seed: int, *, known: bool = False) -> Pairs:
    """Lognormal factors of mean 1 for so many models, nothing seen of them.

    Args: `sigma`: standard deviation of their logarithms; `seed`, with the number of models, decides the draw.
    """
    z = np.random.default_rng([seed, models]).standard_normal((models, models))
    nothing = jnp.zeros((models, models), jnp.float32)
    factor = jnp.asarray(np.exp(sigma * z - sigma**2 / 2), jnp.float32)
    return Pairs(factor=factor, seen_s=nothing, mean=nothing + 1.0, known=known)


def as_is(params: EnvParams, state: State) -> EnvParams:
    """The parameters with the factors of the state."""
    return _with_factors(params, state.pairs.factor) if state.pairs.there else params


def as_known(params: EnvParams, state: State) -> tuple[EnvParams, State]:
    """Parameters and state as policies see them: without the factors, unless they are known."""
    pairs = state.pairs
    if pairs.known:
        return as_is(params, state), state
    return params, state.replace(pairs=pairs.replace(factor=jnp.ones_like(pairs.factor)))


def as_seen(params: EnvParams, state: State) -> EnvParams:
    """The parameters with the factors that have been seen, 1 for all others; with the known ones if they are known."""
    return _with_factors(params, state.pairs.mean) if state.pairs.there and not state.pairs.known else params


def _with_factors(params: EnvParams, factors: Float32[Array, "models models"]) -> EnvParams:
    return params.replace(interference=params.interference.replace(pairs=factors))


def on_completion(pairs: Pairs, jobs: Sharers, active: Bool[Array, "P R"], seconds: Float32[Array, ""]) -> Pairs:
    """What is known after the `active` ones of `jobs` have run beside each other for so many `seconds`."""
    if not (pairs.there and jobs.gpu.size):
        return pairs
    models = pairs.factor.shape[0]
    there = active & (jobs.gpu >= 0)
    model = jax.nn.one_hot(jobs.model, models) * there[..., None]
    beside = (jobs.gpu[:, :, None] == jobs.gpu[:, None, :]) & there[:, None, :] & ~jnp.eye(active.shape[1], dtype=bool)
    others = beside.astype(jnp.float32) @ model
    weight = seconds * others / jnp.maximum(others.sum(-1, keepdims=True), 1.0)
    seen = mean_factor(pairs.factor, jobs.model, others)
    more_s = jnp.einsum("prm,prn->mn", model, weight)
    gain = jnp.einsum("prm,prn->mn", model, weight * seen[..., None]) - more_s * pairs.mean
    seen_s = pairs.seen_s + more_s
    return pairs.replace(seen_s=seen_s, mean=pairs.mean + gain / jnp.maximum(seen_s, 1e-9))
