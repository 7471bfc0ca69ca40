"""The extensions' parts of parameters and state; of size 0 in worlds that do without them.

Axes are named by what they are of: `Jp` is `J` with preemption, else 0; likewise `f` for failures.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float32, Int8, Int16, Int32

from jaxsched.cluster.hardware import Cluster
from jaxsched.errors import UserError
from jaxsched.pytree import Pytree, on_device, static

MOST_COST_S = 1e9  # that a restart may take, and the like
NOBODY, FAILURES, SCHEDULERS = STOPPERS = ("nobody", "failures", "schedulers")  # who may stop running jobs


class Preemption(Pytree):
    """What stopping a job costs (docs/semantics.md, section 8), and who may stop one."""

    restart_s: Float32[Array, ""]  # from the second start on GPUs are held so long before work goes on
    checkpoint_interval_s: Float32[Array, ""]  # of work, in ideal seconds; 0: at the stop
    min_run_s: Float32[Array, ""]  # a job may not be stopped earlier after a start
    by: str = static(default=SCHEDULERS)  # one of `STOPPERS`; schedulers: failures stop jobs, too, if servers fail

    @property
    def there(self) -> bool:
        """Jobs are stopped by somebody."""
        return self.by != NOBODY

    @property
    def voluntary(self) -> bool:
        """Schedulers stop jobs."""
        return self.by == SCHEDULERS


def make_preemption(
    restart_s: float = 60.0, checkpoint_interval_s: float = 0.0, min_run_s: float = 0.0, *, by: str = SCHEDULERS
) -> Preemption:
    """What stopping a job costs, from plain numbers in seconds. UserError if one is negative or not finite."""
    values = {"restart_s": restart_s, "checkpoint_interval_s": checkpoint_interval_s, "min_run_s": min_run_s}
    for name, value in values.items():
        if not 0.0 <= value < MOST_COST_S:
            raise UserError(f"{name}: {value} should be a number of seconds from 0 to {MOST_COST_S:g}")
    return Preemption(**{name: on_device(value, jnp.float32) for name, value in values.items()}, by=by)


class Failures(Pytree):
    """When servers go out and come back (docs/semantics.md, section 11). Policies do not see it."""

    changes: Int32[Array, "P N C"]  # boundaries in ascending order, it goes out at the first; the last ones are NEVER

    @property
    def there(self) -> bool:
        """Servers may fail; else `C` is 0."""
        return self.changes.shape[-1] > 0


def no_failures(cluster: Cluster) -> Failures:
    """Servers do not fail."""
    return Failures(changes=on_device(np.zeros((*cluster.shape[:2], 0)), jnp.int32))


class Extension(Pytree):
    """A part of the state that not all worlds have: always there, of size 0 where there is nothing of it."""

    @property
    def there(self) -> bool:
        """The world has it: the first of its arrays is not of size 0."""
        return jax.tree.leaves(self)[0].shape[-1] > 0


class Service(Extension):
    """What every job has had, up to its last start or stop; per row of the job table. There if jobs may be stopped."""

    left_s: Float32[Array, "Jp"]  # ideal seconds of work
    left_low_s: Float32[Array, "Jp"]  # the part of it that float32 cannot hold (Kahan)
    since: Int32[Array, "Jp"]  # boundary of the last start
    ran: Int32[Array, "Jp"]  # intervals in which it held GPUs before that
    stops: Int32[Array, "Jp"]
    restarting_s: Float32[Array, "Jp"]  # spent on restarts; of a run that goes on, the whole restart
    lost_s: Float32[Array, "Jp"]  # ideal seconds of work that were not kept


class Faults(Extension):
    """Which servers are out, and what failures have done to the jobs. There if servers may fail."""

    passed: Int32[Array, "P Nf"]  # changes of each server so far; odd: it is out
    count: Int32[Array, "Jf"]  # times that a failure has stopped the job
    lost_s: Float32[Array, "Jf"]  # ideal seconds of work that were lost so

    @property
    def out(self) -> Bool[Array, "P Nf"]:
        """Which servers are out."""
        return self.passed % 2 == 1


class History(Extension):
    """What the jobs that have finished tell: see `extensions.history`. There if policies know it."""

    jobs: Int32[Array, "classes"]
    steps: Int32[Array, "classes"]  # sum of their run times on the grid


class Starts(Extension):
    """A log of starts, in order of time; rows from `count` on are stale. See `extensions.starts`. There if it is kept.

    It has what a job has had by each start (`Service`), and so says how long each of its attempts was, and whether a
    scheduler or a failure ended it.
    """

    job: Int32[Array, "A"]  # row of the job table
    partition: Int32[Array, "A"]
    boundary: Int32[Array, "A"]
    ran: Int32[Array, "A"]  # intervals in which the job had held GPUs before
    stops: Int32[Array, "A"]  # by schedulers, before
    failure_restarts: Int32[Array, "A"]  # by failures, before
    workers: Int8[Array, "A NK"]
    ps: Int16[Array, "A NK"]
    gpu: Int32[Array, "As"]  # as in `Running`
    count: Int32[Array, ""]  # what comes after the last row is only counted


class Pairs(Extension):
    """What models do to each other on a shared GPU beside what the law says: see `extensions.pairs`.

    Of 0 models where the law of sharing is all there is.
    """

    factor: Float32[Array, "models models"]  # of a model and a co-runner's model
    seen_s: Float32[Array, "models models"]  # for how long the two have been seen together
    mean: Float32[Array, "models models"]  # the mean factor that has been seen
    known: bool = static(default=False)  # policies see the factors
