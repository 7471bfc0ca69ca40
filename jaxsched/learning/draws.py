"""Environments drawn from their worlds: what tells one from another, and fresh start states."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32, PRNGKeyArray

from jaxsched.cluster.outages import Rates, parse_rates
from jaxsched.dynamics.footprint import JobSpec, best_hardware, ideal_comm_s
from jaxsched.env.environment import initial_state
from jaxsched.env.extensions.parts import Failures
from jaxsched.env.state import EnvParams, State
from jaxsched.learning.past import draw_past
from jaxsched.learning.worlds import Worlds
from jaxsched.pytree import Pytree
from jaxsched.workload.jobs import NEVER, JobTable
from jaxsched.workload.sampler import mean_area, sample_table, tilt

MOST_OUTAGES = 32  # of a server in the life of one environment; after them it stays up
Limits = tuple[float | Array, float | Array]  # numbers of a configuration, or what a shared program has in their place


class Draw(Pytree):
    """What tells one environment from another, for as long as it lives."""

    strength: Float32[Array, ""]  # contention in units of the model's own
    pace: Float32[Array, ""]  # factor of all times: run times, gaps and the interval
    interval_factor: Float32[Array, ""]  # a further factor of the interval alone
    cluster: Int32[Array, ""]  # index into `Worlds.clusters`
    failures: Failures | None = None  # None: no server fails


def params_of(worlds: Worlds, draw: Draw) -> EnvParams:
    """The parameters of one environment."""
    model, profiles = worlds.params.interference, worlds.profiles
    own = {} if profiles is None else {"profiles": jax.tree.map(lambda leaf: leaf[draw.cluster], profiles)}
    return worlds.params.replace(
        **own,
        cluster=jax.tree.map(lambda leaf: leaf[draw.cluster], worlds.clusters),
        interval_s=worlds.params.interval_s * draw.pace * draw.interval_factor,
        interference=model.replace(weights=model.weights.replace(kappa=model.weights.kappa * draw.strength)),
        failures=worlds.params.failures if draw.failures is None else draw.failures,
    )


def params_axes(worlds: Worlds) -> EnvParams:
    """`in_axes` of `vmap` over the parameters of many environments; a lone cluster is shared by all."""
    shared = jax.tree.map(lambda _: None, worlds.params)
    each = lambda part: jax.tree.map(lambda _: 0, part)
    own = {"interference": each(worlds.params.interference), "failures": each(worlds.params.failures)}
    if worlds.profiles is not None:
        own["profiles"] = each(worlds.params.profiles)
    mapped = shared.replace(interval_s=0, **own)
    if worlds.gpus.shape[0] == 1:
        return mapped
    return mapped.replace(cluster=each(worlds.params.cluster))


def params_of_all(worlds: Worlds, draws: Draw) -> EnvParams:
    """`params_of` for many `draws`, batched where `params_axes` says so."""
    many = jax.vmap(lambda draw: params_of(worlds, draw))(draws)
    keep = lambda axis, leaf, base: base if axis is None else leaf
    return jax.tree.map(keep, params_axes(worlds), many, worlds.params, is_leaf=lambda axis: axis is None)


def draw_state(key: PRNGKeyArray, worlds: Worlds, draw: Draw, load: Float32[Array, ""], count: int) -> State:
    """A fresh environment with `count` jobs at offered load `load`, its mix of jobs drawn from the config's ranges."""
    rule, base = worlds.workload, worlds.jobs
    tilt_key, skew_key, job_key = jax.random.split(key, 3)
    jobs = tilt(base, _uniform(tilt_key, rule.gang_tilt, ()))
    gpus = worlds.gpus[draw.cluster] / worlds.gpus[0]
    rate = base.jobs_per_interval * draw.interval_factor
    jobs = jobs.replace(
        jobs_per_interval=rate * load * gpus * mean_area(base) / mean_area(jobs),
        interval_s=base.interval_s * draw.pace * draw.interval_factor,
        duration_scale=base.duration_scale * draw.pace,
        duration_cap_s=base.duration_cap_s * draw.pace,
        diurnal_period=base.diurnal_period / (draw.pace * draw.interval_factor),
        home_skew=_uniform(skew_key, rule.home_skew, ()),
    )
    params = params_of(worlds, draw)
    homes = params.cluster.group_gpus.shape[0]
    if worlds.past is not None:
        busy, tenants = load * worlds.gpus[draw.cluster], worlds.static.tenants
        past = jax.tree.map(lambda leaf: leaf[draw.cluster], worlds.past) if rule.own else worlds.past
        table = draw_past(job_key, past, count, busy, draw.pace, jobs.interval_s, homes, tenants, alone=rule.own)
        return initial_state(worlds.static, params, table)
    table = sample_table(job_key, jobs, count, homes, worlds.static.tenants)
    if worlds.speeds is not None:
        table = _rescale_to_reference(params, table, worlds.speeds[draw.cluster])
    return initial_state(worlds.static, params, table)


def _rescale_to_reference(params: EnvParams, table: JobTable, speeds: Float32[Array, "models"]) -> JobTable:
    """The same jobs with run times on the reference GPU type, at the same offered load; see `dynamics.reference`."""
    spec = JobSpec(workers=table.workers, gpus_per_worker=table.gpus_per_worker, ps=table.ps, model=table.model)
    comm_s = ideal_comm_s(best_hardware(params.cluster), params.profiles, spec)
    compute_s = params.profiles.compute_s[table.model]
    faster = (compute_s + comm_s) / (compute_s / speeds[table.model] + comm_s)
    gpus = (table.workers * table.gpus_per_worker).astype(jnp.float32)
    stretch = (gpus * table.duration_s * faster).sum() / (gpus * table.duration_s).sum()
    return table.replace(
        arrival=jnp.ceil(table.arrival.astype(jnp.float32) * stretch).astype(jnp.int32),
        duration_s=table.duration_s * faster,
        estimate_s=table.estimate_s * faster,
    )


def draw_worlds(key: PRNGKeyArray, worlds: Worlds, count: int) -> tuple[State, Draw]:
    """`count` fresh environments, everything about them drawn from the ranges of the config, on a leading axis."""
    load_key, draw_key, job_key = jax.random.split(key, 3)
    loads = _uniform(load_key, worlds.workload.load, (count,))
    draws = draw_some(draw_key, worlds, count)

    def one(key: PRNGKeyArray, draw: Draw, load: Float32[Array, ""]) -> State:
        return draw_state(key, worlds, draw, load, worlds.workload.jobs)

    return jax.vmap(one)(jax.random.split(job_key, count), draws, loads), draws


def draw_some(key: PRNGKeyArray, worlds: Worlds, count: int) -> Draw:
    """`count` draws, on a leading axis."""
    strength_key, pace_key, interval_key, cluster_key = jax.random.split(key, 4)
    env, jobs = worlds.env, worlds.workload
    draws = Draw(
        strength=_uniform(strength_key, env.contention, (count,)),
        pace=_log_uniform(pace_key, jobs.pace, count),
        interval_factor=_log_uniform(interval_key, env.interval_factor, count),
        cluster=jax.random.randint(cluster_key, (count,), 0, worlds.gpus.shape[0]),
    )
    if not env.failures:
        return draws
    rates, servers = parse_rates(env.failures), worlds.clusters.group_gpus.shape[1:3]
    keys = jax.random.split(jax.random.fold_in(key, 1), count)  # the draws above are those of worlds without failures
    interval_s = worlds.params.interval_s * draws.interval_factor  # at any pace: it is a factor of all times
    return draws.replace(failures=jax.vmap(lambda key, s: draw_outages(key, rates, servers, s))(keys, interval_s))


def _log_uniform(key: PRNGKeyArray, limits: Limits, count: int) -> Float32[Array, "count"]:
    low, high = limits
    return jnp.exp(_uniform(key, (jnp.log(low), jnp.log(high)), (count,)))


def _uniform(key: PRNGKeyArray, limits: Limits, shape: tuple[int, ...]) -> Float32[Array, "*shape"]:
    return jax.random.uniform(key, shape, minval=limits[0], maxval=limits[1])


def draw_outages(
    key: PRNGKeyArray, rates: Rates, servers: tuple[int, ...], interval_s: Float32[Array, ""] | float
) -> Failures:
    """The outages of each server by itself (docs/semantics.md, section 11, "Drawn outages"), `MOST_OUTAGES` of them.

    Args: `interval_s`: where all times of a world are scaled, in units of that scale.
    """
    means_s = 3600.0 * jnp.array([rates.mtbf_h, rates.mttr_h], jnp.float32)
    steps = jax.random.exponential(key, (*servers, MOST_OUTAGES, 2)) * means_s
    times = jnp.cumsum(steps.reshape(*servers, -1), -1) / interval_s
    changes = jnp.ceil(jnp.minimum(times, NEVER // 2)).astype(jnp.int32)
    # Out, and back, for at least one boundary each: the i-th change comes i boundaries after the first at the earliest.
    place = jnp.arange(changes.shape[-1])
    changes = jax.lax.cummax(changes - place, axis=changes.ndim - 1) + place
    return Failures(changes=jnp.append(changes, jnp.full((*servers, 1), NEVER, jnp.int32), -1))
