"""A menu: the placements that a scheduler is offered, and what it chooses of them."""

from jax import Array
from jaxtyping import Bool, Float32, Int8, Int32

from jaxsched.pytree import Pytree


class Menu(Pytree):
    """Placements on offer, K for every scheduler, those of the window's first job first."""

    rank: Int32[Array, "P K"]  # the job's place in the window
    order: Int32[Array, "P K"]  # place among the job's candidates in greedy-wait's order, 0 for its choice
    workers: Int8[Array, "P K NK"]  # per group
    features: Float32[Array, "P K Fc"]  # what the placement would do, see `policies.menu`
    log_stake: Float32[Array, "P K"]  # log of the seconds lost over those until the next completion, within +-4
    brief: Bool[Array, "P K"]  # the job would be done before the next completion
    mask: Bool[Array, "P K"]


class Choice(Pytree):
    """One decision per scheduler."""

    act: Bool[Array, "P"]  # do something rather than wait
    option: Int32[Array, "P"]  # index into placements (K) followed by forwards (P)
