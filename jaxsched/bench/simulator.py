"""Speed of the simulator: decisions per second of the environment alone, jobs per second of whole simulations.

The environment is measured in JAX, and its rules in the compiled event loop beside it (`event_loop`).

Compilation is timed apart from running, and every figure comes with the number of environments and the device.
"""

import copy
import dataclasses
import os
import platform
import time
import timeit
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.bench.programs import (
    CACHED,
    INTERVAL_S,
    LOAD,
    LONGEST_DURATION_S,
    MEAN_DURATION_S,
    environment_of,
    job_tables,
    program_of_rounds,
    program_of_turns,
    start_states,
    world_for,
)
from jaxsched.cluster.hardware import Cluster, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.batching import on_cpu
from jaxsched.env.pool import starts_of
from jaxsched.env.stages import at_boundary, state_of
from jaxsched.event_loop import Run
from jaxsched.machine import loop_options
from jaxsched.options import JAX
from jaxsched.policies.registry import parse
from jaxsched.simulation.compiled_engine import CompiledEngine
from jaxsched.simulation.jax_program import Program
from jaxsched.simulation.jax_run import JaxEngine
from jaxsched.simulation.settings import PlayedWorld, Settings, compact_tenants
from jaxsched.workload.load import WorkloadOptions, get_workload

LEAST_WALL_S = 3.0  # a timing goes on until it has run so long
WARM_INTERVALS = 24  # on average, before the timing starts: two hours
POOL = 64  # job lists that environments draw from when they start anew; 8 for one environment
ROUNDS_ALONE, ROUNDS_TOGETHER = 1024, 128  # per call, of one environment and of several


@dataclasses.dataclass(frozen=True)
class Timing:
    """One measurement; None where a column has no meaning.

    A decision is one turn of one scheduler that has not yet waited at this boundary, waiting included; for training it
    is a turn in which there was something to choose. `peak_memory_bytes` is what the compiled program holds: arguments,
    results and temporary buffers. `decision_bytes`: read and written for a decision, by XLA's count, each loop once.
    """

    name: str
    num_envs: int
    servers: int
    decisions_per_s: float | None
    jobs_per_cpu_s: float | None
    wall_s: float
    cpu_s: float
    compile_s: float
    peak_memory_bytes: int | None
    device: str
    decision_bytes: float | None = None
    cluster: str = ""  # name or file; "": that of training


def device_name() -> str:
    """Kind of the device that JAX computes on; of a CPU the model and how many cores it has."""
    if jax.default_backend() != "cpu":
        return f"{jax.default_backend()}: {jax.devices()[0].device_kind}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return f"cpu: {os.cpu_count()} x {model}"


def bench_environment(cluster_name: str, policy: str, num_envs: int, schedulers: int | None = None) -> Timing:
    """Decisions per second and jobs per CPU second of `num_envs` vmapped environments under a hand-written policy.

    Topology, contention, interference and starting anew are included; observations are, if the policy reads them.
    """
    config, cluster, params = environment_of(cluster_name, schedulers, policy)
    pool = start_states(cluster, config, params, min(POOL, 8 * num_envs))
    states = jax.jit(starts_of)(pool, jnp.arange(num_envs) % len(pool.clock))
    in_turns = num_envs > 1 and not on_cpu()  # in step with each other
    rounds = ROUNDS_ALONE if num_envs == 1 else ROUNDS_TOGETHER
    run = (program_of_turns if in_turns else program_of_rounds)(config, parse(policy), rounds)
    playing = jax.jit(jax.vmap(at_boundary))(states) if in_turns else states
    key = jax.random.key(0)
    begin = time.perf_counter()
    compiled = jax.jit(run, donate_argnums=0).lower(playing, params, pool, key).compile(loop_options())
    compile_s = time.perf_counter() - begin
    calls = 0
    while float(state_of(playing).clock.mean()) < WARM_INTERVALS:  # clusters fill
        playing, _, _ = compiled(playing, params, pool, jax.random.fold_in(key, calls))
        calls += 1

    decisions, jobs, warm, wall_s, cpu_s = 0, 0, calls, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall_s < LEAST_WALL_S:
        playing, made, done = compiled(playing, params, pool, jax.random.fold_in(key, calls))
        decisions, jobs, calls = decisions + int(made), jobs + int(done), calls + 1
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    counted = (compiled.cost_analysis() or {}).get("bytes accessed")
    each = (calls - warm) * rounds / decisions if in_turns else 1 / min(num_envs, CACHED)
    return Timing(
        name=f"environment/{policy}",
        num_envs=num_envs,
        servers=_servers(cluster),
        decisions_per_s=decisions / wall_s,
        jobs_per_cpu_s=jobs / cpu_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        compile_s=compile_s,
        peak_memory_bytes=memory_bytes(compiled),
        device=device_name(),
        decision_bytes=None if counted is None else counted * each,
    )


def copied_bytes_s() -> float:
    """Bytes that the device reads and writes in a second: the best of ten copies of 256 MiB, which no cache holds."""
    array, copy = jnp.zeros(2**26, jnp.float32), jax.jit(lambda array: array + 1.0)
    seconds = timeit.repeat(lambda: copy(array).block_until_ready(), number=1, repeat=11)  # the first compiles
    return 2 * array.nbytes / min(seconds)


def bench_simulation(cluster_name: str, policy: str, num_jobs: int = 1000, schedulers: int | None = None) -> Timing:
    """Jobs per CPU second of a whole run, as `jaxsched simulate` does it; everything is compiled in a first run."""
    cluster, settings = get_cluster(cluster_name, schedulers), Settings.taken_from(world_for(policy), engine=JAX)
    options = WorkloadOptions(
        num_jobs=num_jobs,
        load=LOAD,
        total_gpus=total_gpus(cluster),
        schedulers=cluster.shape[0],
        mean_duration_s=MEAN_DURATION_S,
        duration_cap_s=LONGEST_DURATION_S,
    )
    jobs = compact_tenants([get_workload("philly-like", options)[0]])
    player = JaxEngine().prepare(parse(policy), PlayedWorld(cluster, jobs, settings))
    compile_s = player.play(jobs)[0].stats.compile_s
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = player.play(jobs)[0]
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return Timing(
        name=f"simulate/{policy}",
        num_envs=1,
        servers=_servers(cluster),
        decisions_per_s=None,
        jobs_per_cpu_s=int(result.finished.sum()) / cpu_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        compile_s=compile_s,
        peak_memory_bytes=_program_memory(player.program),
        device=device_name(),
    )


def bench_compiled(cluster_name: str, policy: str, num_envs: int, schedulers: int | None = None) -> Timing:
    """Jobs per CPU second of `num_envs` environments that the compiled event loop plays in turn.

    Clusters, job lists and limits are those of `bench_environment`. An environment plays its list to the end when it is
    its turn, and starts anew on the next one of the pool, which is timed, too. Memory is that of all arrays, of which
    much is never touched.
    """
    config, cluster, params = environment_of(cluster_name, schedulers, policy)
    lists = min(num_envs, POOL)
    tables = job_tables(cluster, config, lists)

    def run_of(member: int) -> Run:
        return Run(config, params, jax.tree.map(lambda leaf: leaf[member], tables), parse(policy), INTERVAL_S)

    pool = [run_of(member) for member in range(lists)]
    begin = time.perf_counter()
    pool[0].go_on(0)
    compile_s = time.perf_counter() - begin
    envs = [copy.copy(pool[env % lists]) for env in range(num_envs)]
    for env in envs:
        env.restart()

    jobs, turns, wall_s, cpu_s = 0, 0, time.perf_counter(), time.process_time()
    while turns < num_envs or time.perf_counter() - wall_s < LEAST_WALL_S:
        env = envs[turns % num_envs]
        while not env.go_on():
            pass
        jobs, turns = jobs + env.finished, turns + 1
        env.world = pool[turns % lists].world
        env.restart()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    arrays = jax.tree.leaves(([env.tables for env in envs], [run.world for run in pool]))
    return Timing(
        name=f"compiled/{policy}",
        num_envs=num_envs,
        servers=_servers(cluster),
        decisions_per_s=None,
        jobs_per_cpu_s=jobs / cpu_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        compile_s=compile_s,
        peak_memory_bytes=sum(leaf.nbytes for leaf in arrays if isinstance(leaf, np.ndarray)),
        device=device_name(),
    )


def jax_plays(policy: str) -> bool:
    """Whether JAX has what `bench_environment` and `bench_simulation` need."""
    spec = parse(policy).spec
    return spec is None or spec.beyond_jax is None


def compiled_plays(cluster_name: str, policy: str, schedulers: int | None = None) -> bool:
    """Whether the compiled loop has what `bench_compiled` needs."""
    config, _, params = environment_of(cluster_name, schedulers, policy)
    return CompiledEngine().why_not(parse(policy), config, params) is None


def memory_bytes(compiled: Any) -> int | None:
    """Bytes that a compiled program needs at once, as XLA says; None where it does not."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    held = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return int(held - found.alias_size_in_bytes)


def _program_memory(program: Program) -> int | None:
    sizes = [memory_bytes(chunk.run) for chunk in program.chunks]
    return None if not sizes or None in sizes else max(size for size in sizes if size is not None)


def _servers(cluster: Cluster) -> int:
    return int((np.asarray(cluster.group_gpus).sum(-1) > 0).sum())
