"""The environments that are trained on: their static config, parameters and freshly drawn start states."""

import jax
from jax import Array

from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.state import EnvConfig, EnvParams, State, make_params, reward_weights
from jaxsched.interference.named import interference_model
from jaxsched.training.config import TrainConfig
from jaxsched.workload.sampler import SamplerParams, sample_table, sampler_for_load


def env_config(config: TrainConfig) -> EnvConfig:
    """Static shapes; rounds end early, because most boundaries need few of them."""
    env = config.env
    return EnvConfig(
        running_slots=env.running_slots,
        queue_slots=env.queue_slots,
        rounds=env.rounds,
        window=env.window,
        order=env.order,
        skip_blocked=env.skip_blocked,
        largest_worker=1,
        early_stop=True,
        interference=interference_model(config.env.interference)[0],
    )


def training_cluster(config: TrainConfig) -> Cluster:
    """The cluster that the config names."""
    return get_cluster(config.env.cluster, config.env.schedulers)


def base_params(config: TrainConfig, cluster: Cluster) -> EnvParams:
    """Parameters shared by all environments."""
    scale = config.reward.scale
    reward = reward_weights(config.reward.jobs / scale, config.reward.lost / scale, config.reward.progress / scale)
    _, weights = interference_model(config.env.interference)
    return make_params(cluster, interval_s=config.env.interval_s, reward=reward, interference=weights)


def with_contention(params: EnvParams, strength: Array) -> EnvParams:
    """`params` with the interference of every channel `strength: float32[]` times as strong."""
    model = params.interference
    return params.replace(interference=model.replace(kappa=model.kappa * strength))


def sampler(config: TrainConfig, cluster: Cluster) -> SamplerParams:
    """The job sampler at offered load 1; `draw_state` scales its arrival rate."""
    jobs = config.workload
    return sampler_for_load(
        1.0,
        total_gpus(cluster),
        config.env.interval_s,
        mean_duration_s=jobs.mean_duration_s,
        duration_cap_s=jobs.duration_cap_s,
        gpu_counts=dict(jobs.gpu_counts),
        ps_fraction=jobs.ps_fraction,
        burstiness=jobs.burstiness,
        home_skew=jobs.home_skew,
    )


def draw_state(key: Array, config: EnvConfig, params: EnvParams, jobs: SamplerParams, load: Array, count: int) -> State:
    """A fresh environment with `count` jobs at offered load `load`."""
    rate = jobs.jobs_per_interval * load
    homes = params.cluster.group_gpus.shape[0]
    table = sample_table(key, jobs.replace(jobs_per_interval=rate), count, homes, config.tenants)
    return initial_state(config, params, table)


def draw_worlds(
    key: Array, config: TrainConfig, static: EnvConfig, params: EnvParams, jobs: SamplerParams, count: int
) -> tuple[State, Array]:
    """`count` fresh environments with loads and contention drawn from their ranges: states and strengths `[count]`."""
    load_key, strength_key, job_key = jax.random.split(key, 3)
    low, high = config.workload.load
    loads = jax.random.uniform(load_key, (count,), minval=low, maxval=high)
    low, high = config.env.contention
    strengths = jax.random.uniform(strength_key, (count,), minval=low, maxval=high)

    def one(key: Array, load: Array) -> State:
        return draw_state(key, static, params, jobs, load, config.workload.jobs)

    return jax.vmap(one)(jax.random.split(job_key, count), loads), strengths
