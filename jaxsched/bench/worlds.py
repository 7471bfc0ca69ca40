"""The environments that are timed: clusters, job lists and limits."""

import jax
import numpy as np

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.state import EnvConfig, EnvParams, State, make_params, preemption
from jaxsched.policies.registry import parse
from jaxsched.workload.jobs import JobTable
from jaxsched.workload.sampler import sample_table, sampler_for_load

LOAD, INTERVAL_S = 0.9, 300.0
LEAST_JOBS, JOBS_PER_GPU = 512, 4  # of an environment's job list
GPUS_PER_SLOT = 2  # of running jobs: a gang has 4 GPUs on average
MEAN_DURATION_S, LONGEST_DURATION_S = 3600.0, 28800.0


def stops_jobs(policy: str) -> bool:
    """Whether a policy stops jobs, which its world must allow then."""
    options = parse(policy).options
    return options is not None and options.queue.preempt


def environment_of(
    cluster_name: str, schedulers: int | None = None, *, stops: bool = False
) -> tuple[EnvConfig, Cluster, EnvParams]:
    """The environment that is timed on a cluster; jobs may be stopped in it with `stops`."""
    cluster = get_cluster(cluster_name, schedulers)
    largest = int(np.asarray(cluster.group_gpus).sum((1, 2)).max())
    slots = max(min(64, largest), largest // GPUS_PER_SLOT)
    config = EnvConfig(running_slots=slots, queue_slots=64, rounds=16, largest_worker=1, early_stop=True)
    return config, cluster, make_params(cluster, interval_s=INTERVAL_S, preemption=preemption() if stops else None)


def start_states(cluster: Cluster, config: EnvConfig, params: EnvParams, count: int) -> State:
    """Empty clusters, leading axis `count`, each with its own jobs."""
    start = jax.jit(jax.vmap(lambda table: initial_state(config, params, table)))
    return start(job_tables(cluster, config, count))


def job_tables(cluster: Cluster, config: EnvConfig, count: int) -> JobTable:
    """Synthetic jobs, leading axis `count`."""
    jobs = sampler_for_load(
        LOAD, total_gpus(cluster), INTERVAL_S, mean_duration_s=MEAN_DURATION_S, duration_cap_s=LONGEST_DURATION_S
    )
    length = max(LEAST_JOBS, JOBS_PER_GPU * total_gpus(cluster))
    sample = jax.jit(jax.vmap(lambda key: sample_table(key, jobs, length, cluster.shape[0], config.tenants)))
    return sample(jax.random.split(jax.random.key(1), count))
