"""`train --debug-checks`: what must not be after a decision round, as codes that training collects.

JAX's checkify cannot carry an error out of loops under vmap, of which training is made.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Int32, PyTree

from jaxsched.env.checks import FAULTS, Fault, Finding, findings
from jaxsched.env.state import EnvParams, State
from jaxsched.errors import UserError

UNSOUND = Fault("a reward, value or probability that is not finite", "partition")


def fault_code(params: EnvParams, state: State, said: Float32[Array, "P"]) -> Int32[Array, "4"]:
    """The first thing that is wrong with a state, or with what was said of it (any numbers of each scheduler).

    Returns: its place in `FAULTS`, counted from 1, one further for `said`, 0 if nothing is wrong; its job or partition;
    boundary; round.
    """
    found = *findings(params, state), Finding(UNSOUND, ~jnp.isfinite(said), jnp.arange(said.shape[0]))
    code = jnp.zeros(2, jnp.int32)
    for number, one in reversed([*enumerate(found, 1)]):
        code = jnp.where(one.wrong.any(), jnp.stack([jnp.int32(number), one.names[one.wrong.argmax()]]), code)
    return jnp.concatenate([code, jnp.stack([state.clock, state.round])])


def stop_at_fault(chunk: int, codes: Int32[np.ndarray, "T E 4"], weights: PyTree) -> None:
    """UserError with the first fault of a chunk's rounds; after that, with weights that are not finite."""
    for step, environment in np.argwhere(codes[..., 0] > 0)[:1]:
        number, one, boundary, round_ = codes[step, environment].tolist()
        fault = (*FAULTS, UNSOUND)[number - 1]
        raise UserError(
            f"debug check of chunk {chunk}: {fault.what}: {fault.of} {one} of environment {environment}, "
            f"boundary {boundary}, round {round_}"
        )
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights)):
        raise UserError(f"debug check of chunk {chunk}: weights that are not finite, after its updates")
