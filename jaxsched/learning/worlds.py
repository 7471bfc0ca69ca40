"""The worlds that are trained on: their options, and what is made of these once, before environments are drawn."""

import dataclasses
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32
from msgspec import Meta

from jaxsched.calibration.interference.named import interference_model
from jaxsched.cluster.hardware import Cluster, distinct_speeds, total_gpus
from jaxsched.cluster.outages import parse_rates
from jaxsched.cluster.padding import common_shape, pad, stack
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.reference import speeds_on
from jaxsched.env.extensions.parts import FAILURES, NOBODY, SCHEDULERS, Failures, no_failures, preemption
from jaxsched.env.state import EnvConfig, EnvParams, RewardWeights, make_params
from jaxsched.io.schema import NotNegative, Positive
from jaxsched.options import World
from jaxsched.semantics import KNOWLEDGE, NOTHING
from jaxsched.workload.jobs import NEVER
from jaxsched.workload.mixes import get_mix
from jaxsched.workload.sampler import SampledJobs, SamplerParams, sampler_for_load

Many = Annotated[int, Meta(ge=1, le=1 << 16)]  # environments, steps, slots: far above any run, far below any memory
Jobs = Annotated[int, Meta(ge=1, le=10**7)]
Limits = tuple[float, float]  # least and most of what is drawn
GpuCounts = Annotated[tuple[tuple[int, float], ...], Meta(max_length=1024)]
PositiveLimits = tuple[Positive, Positive]
Rules = list[tuple[bool, str]]  # what must hold of several options, and what to say where it does not


def rule_of_rising(name: str, limits: Limits) -> tuple[bool, str]:
    """The rule of a range."""
    return limits[0] <= limits[1], f"{name}: {list(limits)} should be two rising numbers"


@dataclasses.dataclass(frozen=True)
class WorkloadConfig:
    """The jobs to train on; ranges (low, high) are drawn anew for every environment."""

    load: PositiveLimits = (0.6, 1.0)
    mean_duration_s: float = 3600.0
    duration_cap_s: float = 28800.0
    gpu_counts: GpuCounts = ((1, 0.6), (2, 0.08), (4, 0.14), (8, 0.12), (16, 0.04), (32, 0.02))  # GPUs and weight
    ps_fraction: float = 0.5
    mix: str = "default"  # of models: a name of `workload.mixes`, or models with commas between
    burstiness: float = 1.5
    home_skew: tuple[NotNegative, NotNegative] = (0.3, 0.3)  # home h has weight (h + 1)^-skew
    gang_tilt: Limits = (0.0, 0.0)  # gangs are drawn with weights times size^tilt
    pace: PositiveLimits = (1.0, 1.0)  # factor of all times, the interval included; log-uniform
    jobs: Jobs = 512  # per environment
    trace_gpu: str = ""  # GPU type that run times are on; "": the reference type of each cluster

    def rules(self) -> Rules:
        """What must hold of several of these together. UserError on an unknown mix."""
        get_mix(self.mix)
        return [rule_of_rising(name, getattr(self, name)) for name in ("load", "home_skew", "gang_tilt", "pace")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvironmentConfig(World):
    """The cluster to train on, and the rules of its world: those of an evaluation, with these defaults, and more."""

    cluster: str = "leaf-spine-8"
    more_clusters: tuple[str, ...] = ()  # every environment draws one of all
    schedulers: Many = 2
    interval_s: float = 300.0
    interval_factor: PositiveLimits = (1.0, 1.0)  # of the interval alone, drawn per environment; log-uniform
    running_slots: Many = 32
    queue_slots: Many = 64
    rounds: int = 16
    interference: str = "analytic"
    contention: tuple[NotNegative, NotNegative] = (0.5, 1.5)  # its strength, drawn per environment, 1 = as it is
    failures: str | None = ""  # drawn anew for every environment; "": none does

    def rules(self) -> Rules:
        """What else must hold. UserError on failures out of range."""
        if self.failures:
            parse_rates(self.failures)
        known = [name for name in KNOWLEDGE if name != NOTHING]
        return [
            rule_of_rising("interval_factor", self.interval_factor),
            rule_of_rising("contention", self.contention),
            (self.knows in known, f"knows must be one of {', '.join(known)}: learned schedulers read estimates"),
        ]


class Worlds(NamedTuple):
    """Where environments are drawn from."""

    env: EnvironmentConfig
    workload: WorkloadConfig
    static: EnvConfig
    params: EnvParams  # those of an average environment on the first cluster
    clusters: Cluster  # leading axis C, padded to one shape
    gpus: Float32[Array, "C"]
    jobs: SamplerParams  # at offered load 1 on the first cluster
    speeds: Float32[Array, "C models"] | None  # on the type that run times are on, over the reference; None: that is it


def make_worlds(env: EnvironmentConfig, workload: WorkloadConfig, reward: RewardWeights) -> Worlds:
    """The worlds of these options. UserError on a cluster or an interference model that does not exist."""
    clusters = [get_cluster(name, env.schedulers) for name in (env.cluster, *env.more_clusters)]
    shape = common_shape(clusters)
    gpus = jnp.array([total_gpus(cluster) for cluster in clusters], jnp.float32)
    params = base_params(env, reward, pad(clusters[0], shape))
    jobs = sampler(workload, env.interval_s, total_gpus(clusters[0]))
    static = dataclasses.replace(env_config(env), gpu_speeds=max(map(distinct_speeds, clusters)))
    speeds = None
    if workload.trace_gpu:
        models = np.arange(params.profiles.compute_s.shape[-1])
        rows = [speeds_on(cluster, params.profiles, models, workload.trace_gpu) for cluster in clusters]
        speeds = jnp.asarray(np.stack(rows))
    return Worlds(env, workload, static, params, stack(clusters, shape), gpus, jobs, speeds)


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
    """Parameters shared by all environments."""
    stopping = SCHEDULERS if env.preemption else FAILURES if env.fails else NOBODY
    return make_params(
        cluster,
        interval_s=env.interval_s,
        reward=reward,
        interference=interference_model(env.interference),
        max_forwards=jnp.int32(env.max_forwards),
        preemption=preemption(env.restart_s, env.checkpoint_s, env.min_run_s, by=stopping),
        failures=no_outages(cluster.group_gpus.shape[:2]) if env.fails else no_failures(cluster),
    )


def no_outages(servers: tuple[int, ...]) -> Failures:
    """Servers, partitions by servers of each, that could fail and do not."""
    return Failures(changes=jnp.full((*servers, 1), NEVER, jnp.int32))


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
