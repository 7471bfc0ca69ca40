"""What a GPU would run, seen without one: python benchmarks/accelerator.py [POLICY ...] [--envs N] [--json FILE]

Compiles the decision turns of `jaxsched bench` for an NVIDIA H200, or with the name `training` a chunk of training by
the quickstart's configuration, and counts kernels and bytes in the scheduled program (`benchmarks.hlo`). In
training a decision is a choice that a scheduler really had. The counts are exact and repeat to the last digit. They are
no times: `benchmarks/kernels.py` takes those, on a GPU. The host looks at the condition of a loop whose turns depend on
data, before each turn and after the last. Needs XLA's CUDA compiler, but no GPU. In a folder of its own:

    pip install --no-deps --target cuda jax-cuda12-plugin==$JAX jax-cuda12-pjrt==$JAX nvidia-cuda-nvcc-cu12
    PYTHONPATH=cuda CUDA_DATA=cuda/nvidia/cuda_nvcc python benchmarks/accelerator.py pack greedy-wait:p1

$JAX is the version of jax here. A POLICY may be a folder with a checkpoint, or `training`.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax._src import xla_bridge
from jax.experimental import topologies
from jaxtyping import PyTree

from benchmarks import hlo
from jaxsched.bench.programs import TURNS_BETWEEN_STARTS, environment_of, program_of_turns, start_states
from jaxsched.dynamics import batching
from jaxsched.dynamics.batching import ACCELERATOR, traced_for
from jaxsched.env import actions, interval
from jaxsched.env.pool import starts_of
from jaxsched.env.stages import Playing, at_boundary
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.learning import rollout
from jaxsched.learning.chunk import chunk, initial
from jaxsched.learning.config import MachineConfig, quickstart_config, validate
from jaxsched.learning.setting import Setting, make_setting
from jaxsched.networks import hierarchy
from jaxsched.policies import heuristics, menu, offers
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse

FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_gpu_cuda_data_dir="
CLUSTER, POOL, TURNS = "leaf-spine-64", 64, 3 * TURNS_BETWEEN_STARTS
SEEN_ENVS, SEEN_CALLS, WARM_CALLS = 64, 2, 2  # what decisions per turn are counted on
TRAINING = "training"
CHUNK_TURNS, SEEN_TRAINING_ENVS, WARM_CHUNKS, SEEN_CHUNKS = 96, 8, 4, 4
# As XLA describes an H200: https://www.nvidia.com/en-us/data-center/h200/ for the figures.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 150754820096
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 } runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H200"
"""


def described_gpu() -> Any:
    """The device of `H200`. JAX has no public way to ask for a platform without devices: one lookup is patched."""
    xla_bridge._discover_and_register_pjrt_plugins()
    usual = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda name: "cuda" if name in ("cuda", "gpu") else usual(name)
    return topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1").devices[0]


def compiled_for_gpu(function: Callable, *shapes: PyTree) -> tuple[hlo.Loop, float]:
    """What `function` runs on arguments of these shapes, and seconds to compile. It may overwrite the first of them."""
    mesh = jax.sharding.Mesh(np.array([described_gpu()]), ("device",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), shapes)
    begin = time.perf_counter()
    with traced_for(ACCELERATOR):
        compiled = jax.jit(function, donate_argnums=0).lower(*shapes).compile()
    return hlo.program(compiled.as_text() or ""), time.perf_counter() - begin


def total(loop: hlo.Loop, turns: int) -> tuple[int, int, int]:
    """Kernels and bytes of a turn of `loop`, with all within, and how often the host looks at a condition.

    Args: `turns`: of the loops within of which the program does not know them.
    """
    kernels, size, looks = loop.kernels, loop.bytes, 0
    for one in loop.within:
        more, bytes_more, deeper = total(one, turns)
        count = turns if one.turns is None else one.turns
        kernels, size = kernels + count * more, size + count * bytes_more
        looks += count * deeper + (turns + 1 if one.turns is None else 0)
    return kernels, size, looks


def counted(config: EnvConfig, params: EnvParams, policy: Policy, states: State) -> tuple[float, float]:
    """Decisions of an environment in a turn, and the passes of loops over what is needed, on average (1.2: up to 2).

    Args: `states`: starts, one of each environment. Played here, once clusters have filled.
    """
    run = jax.jit(program_of_turns(config, policy, TURNS), donate_argnums=0)
    begun = jax.jit(starts_of)(states, jnp.arange(len(states.clock)))
    playing: Playing = jax.jit(jax.vmap(at_boundary))(begun)
    made = 0
    with traced_for(ACCELERATOR), watched_places() as needed:
        for call in range(WARM_CALLS + SEEN_CALLS):
            if call == WARM_CALLS:
                jax.effects_barrier()
                needed.clear()
            playing, some, _ = run(playing, params, states, jax.random.key(call))
            made += int(some) if call >= WARM_CALLS else 0
    return made / (SEEN_CALLS * TURNS * SEEN_ENVS), most_passes(needed)


OF_PARTS, OF_ENVIRONMENTS = (menu, heuristics, interval, offers, hierarchy), (menu, rollout)
# By the caller, and the share of all places that it computes at a time: the shares that were needed.
Needed = dict[tuple[str, float], list[float]]


@contextlib.contextmanager
def watched_places() -> Iterator[Needed]:
    """Has calls of `of_parts`, `if_needed`, `write_where` say what they need; complete when the block has ended."""
    needed: Needed = collections.defaultdict(list)

    def note(caller: str, share: float, some: Array) -> None:
        jax.debug.callback(lambda mean: needed[caller, share].append(float(mean)), some.mean())

    def of_parts_in(caller: str) -> Callable[..., Any]:
        def watched(parts: PyTree, some: Array, *rest: Any, share: float = batching.SHARE, **more: Any) -> Any:
            note(caller, share, some)
            return batching.of_parts(parts, some, *rest, share=share, **more)

        return watched

    def if_needed_in(caller: str) -> Callable[..., Any]:
        def watched(some: Array, *rest: Any, share: float) -> Any:
            note(caller, share, some)
            return batching.if_needed(some, *rest, share=share)

        return watched

    def written(some: Array, *rest: Any, **more: Any) -> Any:
        note(actions.__name__, batching.STARTED, some)
        return batching.write_where(some, *rest, **more)

    for module in OF_PARTS:
        vars(module).update(of_parts=of_parts_in(module.__name__))
    for module in OF_ENVIRONMENTS:
        vars(module).update(if_needed=if_needed_in(module.__name__ + ", environments"))
    actions.write_where = written
    try:
        yield needed
        jax.effects_barrier()
    finally:
        for module in OF_PARTS:
            vars(module).update(of_parts=batching.of_parts)
        for module in OF_ENVIRONMENTS:
            vars(module).update(if_needed=batching.if_needed)
        actions.write_where = batching.write_where


def most_passes(needed: Needed) -> float:
    """The passes of the loop that goes on most often, on average."""
    return max(float(np.mean(shares)) / share for (_, share), shares in needed.items())


def training_setting(envs: int) -> Setting:
    """The quickstart's configuration on `CLUSTER`, on the accelerator's path."""
    config, cluster, _ = environment_of(CLUSTER)
    plain = quickstart_config()
    env = dataclasses.replace(
        plain.env, cluster=CLUSTER, schedulers=cluster.shape[0], running_slots=config.running_slots
    )
    ppo = dataclasses.replace(plain.ppo, num_envs=envs, steps=CHUNK_TURNS)
    machine = MachineConfig(path=ACCELERATOR)
    return make_setting(validate(dataclasses.replace(plain, env=env, ppo=ppo, machine=machine)))


def training_row(envs: int) -> dict[str, Any]:
    """Counts of a chunk of training."""
    few = training_setting(SEEN_TRAINING_ENVS)
    state, made = jax.jit(lambda: initial(few))(), 0
    with watched_places() as needed:
        step = jax.jit(lambda state: chunk(few, state), donate_argnums=0)
        for call in range(WARM_CHUNKS + SEEN_CHUNKS):
            state, metrics = step(state)
            made += int(metrics["decisions"]) if call >= WARM_CHUNKS else 0
    decisions = made / (SEEN_CHUNKS * CHUNK_TURNS * SEEN_TRAINING_ENVS)
    loops = max(1, math.ceil(most_passes(needed)))
    setting = training_setting(envs)
    shapes = jax.eval_shape(lambda: initial(setting))
    program, compile_s = compiled_for_gpu(lambda state: chunk(setting, state), shapes)
    return counts_row(TRAINING, envs, total(program, loops), CHUNK_TURNS, decisions, compile_s) | {
        "passes": round(most_passes(needed), 3)
    }


def row_of(name: str, envs: int) -> dict[str, Any]:
    """Counts of one policy."""
    policy = parse(name)
    config, cluster, params = environment_of(CLUSTER)

    pool: State = jax.eval_shape(lambda: start_states(cluster, config, params, POOL))
    playing = jax.eval_shape(lambda pool: jax.vmap(at_boundary)(starts_of(pool, jnp.arange(envs) % POOL)), pool)
    run = program_of_turns(config, policy, TURNS)
    program, compile_s = compiled_for_gpu(run, playing, params, pool, jax.random.key(0))
    made, passes = counted(config, params, policy, start_states(cluster, config, params, SEEN_ENVS))
    counts = total(program, max(1, math.ceil(passes)))
    return counts_row(name, envs, counts, TURNS, made, compile_s) | {"passes": round(passes, 3)}


def counts_row(
    name: str, envs: int, counts: tuple[int, int, int], turns: int, made: float, compile_s: float
) -> dict[str, Any]:
    """The row of a program: `counts` of `total` for all its `turns`, `made` decisions per environment and turn."""
    kernels, size, looks = (count / turns for count in counts)
    return {
        "policy": name,
        "environments": envs,
        "kernels_per_turn": round(kernels, 1),
        "looks_of_the_host_per_turn": round(looks, 1),
        "kB_per_environment_and_turn": round(size / envs / 1e3, 1),
        "decisions_per_environment_and_turn": round(made, 3),
        "kB_per_decision": round(size / envs / made / 1e3, 1),
        "compile_s": round(compile_s, 1),
        "jax": jax.__version__,
    }


def main() -> None:
    """Print a line per policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", default=["pack"], metavar="POLICY")
    parser.add_argument("--envs", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}{os.environ.get('CUDA_DATA', '')}"
    jax.config.update("jax_platforms", "cpu")
    rows = []
    for name in args.policies:
        rows.append(training_row(args.envs) if name == TRAINING else row_of(name, args.envs))
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
