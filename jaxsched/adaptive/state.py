"""The arrays of a world of jobs that adapt. J jobs, N nodes, T GPU types."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int

from jaxsched.adaptive.tables import Tables
from jaxsched.dynamics.interference import Interference
from jaxsched.pytree import Pytree, static

NEVER = jnp.inf
SCHEDULERS = "schedulers"  # the axis of lists, where they are those of one cluster
SEEN = 64  # pairs of GPUs and local batch that a job remembers


class AdaptiveJobs(Pytree):
    """What is submitted, in the order of submission."""

    real: Bool[Array, "J"]  # False: padding
    submit_s: Float64[Array, "J"]
    plan: Int[Array, "J"]
    tuned_gpus: Int[Array, "J"]  # what its user would have asked for
    least_gpus: Int[Array, "J"]
    most_gpus: Int[Array, "J"]
    restart_s: Float64[Array, "J"]
    deadline_s: Float64[Array, "J"]  # inf: none


class Own(Pytree):
    """Every batch size of a plan, on the fewest nodes. M plans, R1 numbers of GPUs, K batch sizes, E epochs."""

    local: Int[Array, "M R1 K"]
    passes: Int[Array, "M R1 K"]  # without an update, before each update
    step_s: Float64[Array, "M R1 K"]
    sync_s: Float64[Array, "M R1 K"]
    gain: Float64[Array, "M E R1 K"]  # over an update at the smallest batch; 0: not possible


class Network(Pytree):
    """What lies between nodes. N nodes, T racks, E links; of size 0 where nothing contends."""

    nic_bytes_s: Float64[Array, "N"]
    rack: Int[Array, "N"]
    domain: Int[Array, "N"]  # a number that nodes of one NVLink domain share; others have their own
    byte_s: Float64[Array, "T T E"]  # seconds that each link needs for a byte from one rack to another
    law: Interference

    @property
    def contends(self) -> bool:
        """Whether jobs slow each other down."""
        return self.rack.shape[0] > 0


class AdaptiveWorld(Pytree):
    """Hardware and rules."""

    tables: Tables
    own: Own  # of size 0 where jobs know the truth
    network: Network
    owner: Int[Array, "N"]  # the list whose jobs may have a node; of size 0 where every list has a cluster of its own
    node_gpus: Int[Array, "N"]
    node_type: Int[Array, "N"]
    begin_s: Float64[Array, ""]
    period_s: Float64[Array, ""]
    interference: Float64[Array, ""]  # what a job on several nodes loses that shares a node with another such job
    out_node: Int[Array, "O"]  # outages
    out_from_s: Float64[Array, "O"]
    out_to_s: Float64[Array, "O"]
    widths: tuple[int, ...] = static()  # GPUs of a node, by type
    spread: bool = static()  # placements are looked up by the GPUs on each node, not by nodes and GPUs only
    fits: bool = static()  # jobs know only what they have seen, and fit a model to it


class State(Pytree):
    """What changes."""

    now_s: Float64[Array, ""]
    place: Int[Array, "J N"]  # GPUs on every node
    kind: Int[Array, "J"]  # GPU type of those that have GPUs
    shape: Int[Array, "J"]  # row of the tables, likewise
    progress: Float64[Array, "J"]
    saved: Float64[Array, "J"]  # progress at the last start
    epoch: Int[Array, "J"]
    waiting_s: Float64[Array, "J"]  # what is left of a restart
    service: Float64[Array, "J"]  # GPU-seconds held
    start_s: Float64[Array, "J"]
    finish_s: Float64[Array, "J"]
    restarts: Int[Array, "J"]
    widest: Int[Array, "J"]  # most GPUs so far
    memory: Float64[Array, "J"]  # of the policy
    seen: Float64[Array, "J S 4"]  # GPUs, local batch, seconds of a pass and a step, the latest first; 0 GPUs: nothing
    fit: Float64[Array, "J 7"]  # to what was seen

    @property
    def gpus(self) -> Int[Array, "J"]:
        """GPUs that every job holds."""
        return self.place.sum(-1, dtype=jnp.int32)


def start(world: AdaptiveWorld, jobs: AdaptiveJobs) -> State:
    """Nobody has GPUs, and the clock stands at the last round before the first job."""
    size = jobs.real.shape[0]
    none, zero, never = jnp.zeros(size, jnp.int32), jnp.zeros(size), jnp.full(size, NEVER)
    return State(
        now_s=world.begin_s,
        place=jnp.zeros((size, *world.node_gpus.shape), jnp.int32),
        kind=none,
        shape=none,
        progress=zero,
        saved=zero,
        epoch=none,
        waiting_s=zero,
        service=zero,
        start_s=never,
        finish_s=jnp.where(jobs.real, NEVER, 0.0),
        restarts=none,
        widest=none,
        memory=never,
        seen=jnp.zeros((size, SEEN if world.fits else 0, 4)),
        fit=jnp.zeros((size, 7 if world.fits else 0)),
    )
