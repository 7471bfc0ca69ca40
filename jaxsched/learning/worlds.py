"""The worlds that are trained on: their options, and what is made of these once, before environments are drawn."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32

from jaxsched.calibration.interference.named import interference_model
from jaxsched.cluster.build import common_shape, pad, stack
from jaxsched.cluster.hardware import Cluster, distinct_speeds, reference_type, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.reference import speeds_on
from jaxsched.env.extensions.parts import Failures, no_failures
from jaxsched.env.state import EnvConfig, EnvParams, RewardWeights, params_of_world
from jaxsched.errors import UserError
from jaxsched.learning.options import EnvironmentConfig, WorkloadConfig
from jaxsched.learning.past import Past, read_past
from jaxsched.workload.jobs import NEVER
from jaxsched.workload.sampler import SampledJobs, SamplerParams, sampler_for_load
from jaxsched.worlds.world import training_world


class Worlds(NamedTuple):
    """Where environments are drawn from."""

    env: EnvironmentConfig
    workload: WorkloadConfig
    static: EnvConfig
    params: EnvParams  # those of an average environment on the first cluster
    clusters: Cluster  # leading axis C, padded to one shape
    gpus: Float32[Array, "C"]
    jobs: SamplerParams  # at offered load 1 on the first cluster
    past: Past | None  # jobs of a trace; None: they are drawn by `jobs`
    speeds: Float32[Array, "C models"] | None  # on the type that run times are on, over the reference; None: that is it


def make_worlds(env: EnvironmentConfig, workload: WorkloadConfig, reward: RewardWeights) -> Worlds:
    """The worlds of these options. UserError on a cluster or an interference model that does not exist."""
    clusters = [training_cluster(name, env.schedulers) for name in (env.cluster, *env.more_clusters)]
    shape = common_shape(clusters)
    gpus = jnp.array([total_gpus(cluster) for cluster in clusters], jnp.float32)
    params = base_params(env, reward, pad(clusters[0], shape))
    jobs = sampler(workload, env.interval_s, total_gpus(clusters[0]))
    static = dataclasses.replace(
        env_config(env),
        largest_group=max(int(cluster.group_gpus.max()) for cluster in clusters),
        gpu_speeds=max(map(distinct_speeds, clusters)),
    )
    past = read_past(workload.trace, workload.until, workload.trace_gpu, clusters[0]) if workload.trace else None
    if past is not None:
        if len({reference_type(cluster) for cluster in clusters}) > 1:
            raise UserError("workload: trace: its run times are on one GPU type; take clusters that have the same")
        static = dataclasses.replace(static, largest_worker=int(past.gpus_per_worker.max()))
    speeds = None
    if workload.trace_gpu and past is None:
        models = np.arange(params.profiles.compute_s.shape[-1])
        rows = [speeds_on(cluster, params.profiles, models, workload.trace_gpu) for cluster in clusters]
        speeds = jnp.asarray(np.stack(rows))
    return Worlds(env, workload, static, params, stack(clusters, shape), gpus, jobs, past, speeds)


def training_cluster(name: str, schedulers: int) -> Cluster:
    """A cluster by name or file, or that of a training world such as `wide-training-3`, with the world's schedulers.

    UserError if there is no such cluster, or it is that of a test world.
    """
    world = training_world(name)
    return get_cluster(name, schedulers) if world is None else world.build()


def env_config(env: EnvironmentConfig) -> EnvConfig:
    """Static shapes; rounds end early, because most boundaries need few of them."""
    return EnvConfig(
        running_slots=env.running_slots,
        queue_slots=env.queue_slots,
        rounds=env.rounds,
        largest_worker=1,
        early_stop=True,
        knows=env.knows,
    )


def base_params(env: EnvironmentConfig, reward: RewardWeights, cluster: Cluster) -> EnvParams:
    """Parameters shared by all environments; where servers fail, none does yet."""
    shape = cluster.group_gpus.shape[:2]
    return params_of_world(
        env,
        cluster,
        reward=reward,
        interference=interference_model(env.interference),
        failures=Failures(changes=jnp.full((*shape, 1), NEVER, jnp.int32)) if env.fails else no_failures(cluster),
    )


def sampler(jobs: WorkloadConfig, interval_s: float, gpus: int) -> SamplerParams:
    """The job sampler at offered load 1 on `gpus` GPUs."""
    kind = SampledJobs(
        mean_duration_s=jobs.mean_duration_s,
        duration_cap_s=jobs.duration_cap_s,
        gpu_counts=dict(jobs.gpu_counts),
        ps_fraction=jobs.ps_fraction,
        mix=jobs.mix,
        burstiness=jobs.burstiness,
    )
    return sampler_for_load(1.0, gpus, interval_s, kind)
