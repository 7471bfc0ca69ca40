"""What a policy sees, what it answers, and what makes it a policy."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float64, Int

from jaxsched.adaptive.knowing import predicted
from jaxsched.adaptive.placing import Placing, most_free
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, State
from jaxsched.pytree import Pytree, static


class View(Pytree):
    """What a policy sees at the end of a round. J jobs in the order of submission, T GPU types, R1 numbers of GPUs."""

    now_s: Float64[Array, ""]
    total: Int[Array, "T"]  # GPUs of the cluster
    active: Bool[Array, "J"]  # submitted, and not done
    gpus: Int[Array, "J"]  # now
    kind: Int[Array, "J"]  # their type
    tuned_gpus: Int[Array, "J"]  # what its user would have asked for
    least_gpus: Int[Array, "J"]
    most_gpus: Int[Array, "J"]
    age_s: Float64[Array, "J"]
    restart_s: Float64[Array, "J"]
    deadline_s: Float64[Array, "J"]  # inf: none
    restarts: Int[Array, "J"]
    widest: Int[Array, "J"]  # most GPUs so far
    service: Float64[Array, "J"]  # GPU-seconds held
    progress: Float64[Array, "J"]
    work: Float64[Array, "J"]  # progress at the end
    waiting_s: Float64[Array, "J"]  # what is left of a restart
    memory: Float64[Array, "J"]  # what the policy remembered; inf at first
    update_s: Float64[Array, "J T R1"]  # seconds of an update, likewise; inf: not possible
    iterations: Float64[Array, "J"]  # updates from the end of this epoch on, at least 1
    of_plans: Float64[Array, "M E T R1"]  # goodput by plan and epoch; where jobs predict it, each is a plan
    plan: Int[Array, "J"]
    epoch: Int[Array, "J"]
    widths: tuple[int, ...] = static()  # GPUs of a node, by type

    @property
    def goodput(self) -> Float64[Array, "J T R1"]:
        """On the fewest nodes, in this epoch; 0: not possible."""
        return self.of_plans[self.plan, self.epoch]

    def goodput_at(self, gpus: Int[Array, "C"] | Int[Array, "J 1"], kind: int = 0) -> Float64[Array, "J C"]:
        """The same at some numbers of GPUs, of one type: what is not asked for is not computed."""
        return self.of_plans[self.plan[:, None], self.epoch[:, None], kind, gpus]


class Allocation(Pytree):
    """GPUs of every job. `order` says who is placed first (None: in the order of submission)."""

    gpus: Int[Array, "J"]
    kind: Int[Array, "J"] | None = None  # GPU types; None: the first
    order: Int[Array, "J"] | None = None
    memory: Float64[Array, "J"] | None = None  # None: as before


@dataclasses.dataclass(frozen=True)
class AllocationPolicy:
    """A policy.

    Attributes:
        name: how it is called.
        allocate: decides, in JAX.
        placing: `most_free` places anything; `whole_nodes` takes powers of two and whole nodes only.
        own_batch: jobs choose their batch sizes; else they have what their users would have tuned.
        tuned_gpus: it gives every job the GPUs that its user would have tuned, or none.
        from_goodput: it goes by goodput on one GPU type, which may as well be what jobs predict.
    """

    name: str
    allocate: Callable[[View], Allocation | Array]
    placing: Placing = most_free
    own_batch: bool = True
    tuned_gpus: bool = False
    from_goodput: bool = False


def view_of(world: AdaptiveWorld, jobs: AdaptiveJobs, state: State) -> View:
    """What policies see."""
    tables, plan = world.tables, jobs.plan
    row = jnp.minimum(state.epoch, tables.epochs[plan] - 1)
    of_plans, of_plan, of_epoch = tables.goodput, plan, row
    if world.fits:  # every job has predictions of its own
        of_plans = predicted(world, jobs, state, row)[:, None, None]
        of_plan, of_epoch = jnp.arange(row.shape[0], dtype=jnp.int32), jnp.zeros_like(row)
    return View(
        now_s=state.now_s,
        total=jnp.zeros(len(world.widths), jnp.int32).at[world.node_type].add(world.node_gpus),
        active=jobs.real & (jobs.submit_s <= state.now_s) & (state.finish_s == jnp.inf),
        gpus=state.gpus,
        kind=state.kind,
        tuned_gpus=jobs.tuned_gpus,
        least_gpus=jobs.least_gpus,
        most_gpus=jobs.most_gpus,
        age_s=state.now_s - jobs.submit_s,
        restart_s=jobs.restart_s,
        deadline_s=jobs.deadline_s,
        restarts=state.restarts,
        widest=state.widest,
        service=state.service,
        progress=state.progress,
        work=tables.ends[plan, tables.epochs[plan] - 1],
        waiting_s=state.waiting_s,
        memory=state.memory,
        of_plans=of_plans,
        plan=of_plan,
        epoch=of_epoch,
        update_s=tables.update_s[plan],
        iterations=tables.iterations[plan, row],
        widths=world.widths,
    )
