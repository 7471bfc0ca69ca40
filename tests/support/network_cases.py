"""Observations of any size, made up, and the network on them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.env.observation import Menu, Observation
from jaxsched.networks.hierarchy import Heads, SchedulerNetwork

# P, N, K, T, W, C: from one group alone to more servers, sockets, jobs and candidates than any other test has
SIZES = [(1, 1, 1, 1, 1, 3), (3, 3, 2, 2, 2, 6), (4, 5, 3, 4, 4, 24)]
SIZE = SIZES[1]
NET = SchedulerNetwork(width=8)


def make(size=SIZE, seed: int = 0, padded: bool = False) -> tuple[Observation, Menu]:
    """A random observation and menu; `padded` masks the last server, the last socket of others, jobs and candidates."""
    p, n, k, t, w, c = size
    rng = np.random.default_rng(seed)

    def floats(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    group_mask, job_mask, mask = np.ones((p, n, k), bool), np.ones((p, w + 1), bool), np.ones((p, w * c), bool)
    if padded:
        group_mask[-1, -1], group_mask[0, 0, -1] = False, False
        job_mask[-1, 0], mask[0, c - 1 :: c], mask[-1] = False, False, False
    obs = Observation(
        group=floats(p, n, k, 8),
        group_mask=jnp.asarray(group_mask),
        server=floats(p, n, 4),
        server_rack=jnp.asarray(rng.integers(0, t, (p, n)), jnp.int32),
        rack=floats(p, t, 2),
        scheduler=floats(p, 7).at[:, 0].set(0.5),  # half of the GPUs are free; where all are, waiting is no choice
        job=floats(p, w + 1, 14),
        job_slot=jnp.zeros((p, w + 1), jnp.int32),
        job_mask=jnp.asarray(job_mask),
        forward_mask=~jnp.eye(p, dtype=bool),
    )
    workers = rng.integers(0, 3, (p, w * c, n, k)) * group_mask[:, None]
    menu = Menu(
        rank=jnp.broadcast_to(jnp.arange(w * c, dtype=jnp.int32) // c, (p, w * c)),
        order=jnp.broadcast_to(jnp.arange(w * c, dtype=jnp.int32) % c, (p, w * c)),
        workers=jnp.asarray(workers.reshape(p, w * c, n * k), jnp.int8),
        features=floats(p, w * c, 12) * mask[..., None],
        log_stake=floats(p, w * c) * mask,
        brief=jnp.zeros((p, w * c), bool),  # where a job would soon be done, waiting is no choice
        mask=jnp.asarray(mask),
    )
    return obs, menu


@functools.cache
def weights_of(network: SchedulerNetwork):
    """Random weights in the shapes of the smallest cluster, large enough that every part of the network counts."""
    rng = np.random.default_rng(3)

    def random(leaf):
        spread = 1.0 / np.sqrt(leaf.shape[0]) if len(leaf.shape) > 1 else 0.3
        return jnp.asarray(spread * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(random, jax.eval_shape(network.init, jax.random.key(0), *make(SIZES[0])))


@functools.cache
def jit_apply(network: SchedulerNetwork):
    return jax.jit(network.apply)


def apply(obs: Observation, menu: Menu, network: SchedulerNetwork = NET) -> Heads:
    return jit_apply(network)(weights_of(network), obs, menu)


def assert_same(one: Heads, other: Heads, *names: str, rtol: float = 2e-5) -> None:
    for name in names or ("place", "forward", "act", "value"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=2e-5, err_msg=name)


def assert_differ(one: jax.Array, other: jax.Array) -> None:
    assert float(jnp.abs(one - other).max()) > 1e-3


def pad(leaf: jax.Array, axis: int, fill=0) -> jax.Array:
    """`leaf` with one more entry at the end of `axis`."""
    widths = [(0, 0)] * leaf.ndim
    widths[axis] = (0, 1)
    return jnp.pad(leaf, widths, constant_values=fill)
