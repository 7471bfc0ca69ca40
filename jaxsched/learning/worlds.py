"""The worlds that are trained on: their options, and what is made of these once, before environments are drawn."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32

from jaxsched.calibration.interference.named import interference_model
from jaxsched.cluster.build import common_shape, pad, renumber_types, stack
from jaxsched.cluster.hardware import Cluster, distinct_speeds, reference_type, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.reference import on_reference, profiles_on, speeds_on
from jaxsched.env.extensions.parts import Failures, no_failures
from jaxsched.env.state import EnvConfig, EnvParams, RewardWeights, params_of_world
from jaxsched.errors import UserError
from jaxsched.learning.options import EnvironmentConfig, WorkloadConfig
from jaxsched.learning.past import Past, past_of, read_past
from jaxsched.workload.jobs import NEVER
from jaxsched.workload.models import Profiles
from jaxsched.workload.sampler import SampledJobs, SamplerParams, sampler_for_load
from jaxsched.worlds.world import World, mean_jobs, training_world


class Worlds(NamedTuple):
    """Where environments are drawn from."""

    env: EnvironmentConfig
    workload: WorkloadConfig
    static: EnvConfig
    params: EnvParams  # those of an average environment on the first cluster
    clusters: Cluster  # leading axis C, padded to one shape
    gpus: Float32[Array, "C"]  # those that a load of 1 keeps busy: all, or as many as the worlds' own jobs do
    jobs: SamplerParams  # at offered load 1 on the first cluster
    past: Past | None  # jobs of a trace, or of each cluster's world (a leading axis C); None: they are drawn by `jobs`
    profiles: Profiles | None  # of each cluster's world, leading axis C; None: those of `params`
    worth: Float32[Array, "C"]  # factor of rewards: with worlds' own jobs 1 over how many are in the system on average
    speeds: Float32[Array, "C models"] | None  # on the type that run times are on, over the reference; None: that is it


def make_worlds(env: EnvironmentConfig, workload: WorkloadConfig, reward: RewardWeights) -> Worlds:
    """The worlds of these options. UserError on a cluster or an interference model that does not exist."""
    names = (env.cluster, *env.more_clusters)
    found = [training_world(name) for name in names]
    clusters = [world.build() if world else get_cluster(name, env.schedulers) for name, world in zip(names, found)]
    gpus = jnp.array([total_gpus(cluster) for cluster in clusters], jnp.float32)
    stacked = stack(clusters)
    first = renumber_types(pad(clusters[0], common_shape(clusters)), stacked.gpu_types)
    params = base_params(env, reward, first)
    jobs = sampler(workload, env.interval_s, total_gpus(clusters[0]))
    past, models, speeds, worth = None, None, None, jnp.ones_like(gpus)
    if workload.own:
        past, models, gpus = _own_jobs(names, found, stacked.gpu_types)
        worth = jnp.array([1.0 / mean_jobs(world) for world in found if world], jnp.float32)
        params = params.replace(profiles=jax.tree.map(lambda leaf: leaf[0], models))
    elif workload.trace:
        past = read_past(workload.trace, workload.until, workload.trace_gpu, clusters[0])
        if len({reference_type(cluster) for cluster in clusters}) > 1:
            raise UserError("workload: trace: its run times are on one GPU type; take clusters that have the same")
    elif workload.trace_gpu:
        every = np.arange(params.profiles.compute_s.shape[-1])
        rows = [speeds_on(cluster, params.profiles, every, workload.trace_gpu) for cluster in clusters]
        speeds = jnp.asarray(np.stack(rows))
    static = dataclasses.replace(
        env_config(env),
        largest_group=max(int(cluster.group_gpus.max()) for cluster in clusters),
        gpu_speeds=max(map(distinct_speeds, clusters)),
        largest_worker=1 if past is None else int(past.gpus_per_worker.max()),
    )
    return Worlds(env, workload, static, params, stacked, gpus, jobs, past, models, worth, speeds)


def _own_jobs(
    names: Sequence[str], worlds: Sequence[World | None], types: tuple[str, ...]
) -> tuple[Past, Profiles, Array]:
    """The jobs of worlds, their models, and how many GPUs they keep busy, stacked: a leading axis over worlds.

    Args: `types`: of GPUs, as profiles number them. UserError where there is no world, or one with plans.
    """
    pasts, models, busy = [], [], []
    for name, world in zip(names, worlds):
        if world is None:
            raise UserError(f"workload: own: {name} has no jobs; take clusters of training worlds, as any-training-3")
        if any(model.patterns is not None for model in world.models):
            raise UserError(f"workload: own: {name}: its jobs have plans, which training does not know")
        cluster = renumber_types(world.build(), types)
        models.append(profiles_on(cluster, world.catalogue.models))
        jobs = on_reference(cluster, models[-1], world.jobs)
        pasts.append(past_of(jobs))
        busy.append((jobs.workers * jobs.gpus_per_worker * jobs.duration_s).sum() / np.ptp(jobs.submit_s))
    if len({past.gap_s.shape for past in pasts}) > 1:
        raise UserError("workload: own: worlds should have as many jobs as each other; leave out tasks")
    join = lambda *leaves: jnp.stack(leaves)
    return jax.tree.map(join, *pasts), jax.tree.map(join, *models), jnp.array(busy, jnp.float32)


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
