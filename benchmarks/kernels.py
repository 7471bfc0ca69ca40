"""Where the time goes on a GPU: python benchmarks/kernels.py [POLICY ...] [--envs N ...] [--json FILE]

Plays the decision turns of `jaxsched bench` on 64 servers on the accelerator that JAX finds, or with the name
`training` chunks of training by the quickstart's configuration. Prints decisions per second and milliseconds per turn,
compilation apart, then the kernels that took longest in one more call, as JAX's profiler saw them. A POLICY may be a
folder with a checkpoint. In training a decision is a choice that a scheduler really had. Each program has a process of
its own: all are compiled side by side, then timed one after the other.

    python benchmarks/kernels.py pack greedy-wait:p1 quickstart training --envs 1024 4096

Needs JAX for the accelerator, and nothing else beside jaxsched.
"""

import argparse
import gzip
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from accelerator import CHUNK_TURNS, CLUSTER, POOL, TRAINING, TURNS, training_setting

from jaxsched.bench.programs import environment_of, program_of_turns, start_states
from jaxsched.bench.simulator import LEAST_WALL_S, WARM_INTERVALS, device_name, memory_bytes
from jaxsched.dynamics.batching import ACCELERATOR, traced_for
from jaxsched.env.pool import starts_of
from jaxsched.env.stages import at_boundary
from jaxsched.learning.chunk import chunk, initial
from jaxsched.machine import loop_options
from jaxsched.policies.registry import parse

LONGEST = 12  # kernels that are listed
WARM_CHUNKS = 2


class Program:
    """A compiled program and its state."""

    def __init__(self, name: str, envs: int) -> None:
        begin = time.perf_counter()
        self.calls, self.training = 0, name == TRAINING
        with traced_for(ACCELERATOR):
            self.turns, self.state, self.fixed, step = _training(envs) if self.training else _turns(name, envs)
            step = jax.jit(step, donate_argnums=0)
            self.step = step.lower(self.state, self.fixed, jax.random.key(0)).compile(loop_options())
        self.compile_s = time.perf_counter() - begin

    def call(self) -> int:
        """Plays on; returns the decisions that were made."""
        self.state, made = self.step(self.state, self.fixed, jax.random.key(self.calls))
        self.calls += 1
        return int(made)

    def warm_up(self) -> None:
        """Until clusters have filled."""
        while self.calls < WARM_CHUNKS or (not self.training and self.state.state.clock.mean() < WARM_INTERVALS):
            self.call()


def _turns(name: str, envs: int) -> tuple[int, Any, Any, Callable]:
    config, cluster, params = environment_of(CLUSTER)
    pool = start_states(cluster, config, params, POOL)
    run = program_of_turns(config, parse(name), TURNS)
    states = jax.jit(starts_of)(pool, jnp.arange(envs) % POOL)
    playing = jax.jit(jax.vmap(at_boundary))(states)
    return TURNS, playing, (params, pool), lambda playing, fixed, key: run(playing, fixed[0], fixed[1], key)[:2]


def _training(envs: int) -> tuple[int, Any, Any, Callable]:
    setting = training_setting(envs)

    def step(state: Any, _fixed: Any, _key: Any) -> tuple[Any, Any]:
        after, metrics = chunk(setting, state)
        return after, metrics["decisions"]

    return CHUNK_TURNS, jax.jit(lambda: initial(setting))(), None, step


def kernels_of(program: Program) -> list[dict[str, Any]]:
    """What the accelerator ran in one call, kernel by kernel, the longest first; empty on a CPU."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            program.call()
        file = next(Path(folder).rglob("*.xplane.pb"))
        took, launches = Counter(), Counter()
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines if plane.name.startswith("/device:") else ():
                for event in line.events if line.name.startswith("Stream") else ():
                    took[event.name] += event.duration_ns / 1e3
                    launches[event.name] += 1
    return [
        {"kernel": name, "us_per_turn": us / program.turns, "per_turn": launches[name] / program.turns}
        for name, us in took.most_common()
    ]


def initialise(compiled: Any, turn: Any) -> None:
    """Gives a process the barrier that it meets the others at, and the lock of whoever is timed."""
    global COMPILED, TURN
    COMPILED, TURN = compiled, turn


def row_of(name: str, envs: int, texts: Path | None) -> dict[str, Any]:
    """Measurement of one program, once all others are compiled and none is being timed."""
    program: Program | None = None
    try:
        program = Program(name, envs)
        if texts:
            text = gzip.compress((program.step.as_text() or "").encode())
            (texts / f"{Path(name).name.replace(':', '-')}-{envs}.hlo.gz").write_bytes(text)
    finally:
        COMPILED.wait()
    with TURN:
        return timed(program, name, envs)


def timed(program: Program, name: str, envs: int) -> dict[str, Any]:
    """Measurement of a compiled program; it plays until clusters have filled, then for a while."""
    program.warm_up()
    made, calls, begin = 0, 0, time.perf_counter()
    while time.perf_counter() - begin < LEAST_WALL_S:
        made, calls = made + program.call(), calls + 1
    wall_s = time.perf_counter() - begin
    return {
        "policy": name,
        "environments": envs,
        "decisions_per_s": round(made / wall_s),
        "ms_per_turn": round(1e3 * wall_s / (calls * program.turns), 3),
        "compile_s": round(program.compile_s, 1),
        "memory_bytes": memory_bytes(program.step),
        "device": device_name(),
        "jax": jax.__version__,
        "kernels": kernels_of(program),
    }


def main() -> None:
    """Print the measurements, and the longest kernels of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", default=["pack"], metavar="POLICY")
    parser.add_argument("--envs", type=int, nargs="+", default=[1024])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--texts", type=Path, help="a folder for the compiled programs: what is in each kernel")
    args = parser.parse_args()
    asked = list(itertools.product(args.policies, args.envs))
    spawn = multiprocessing.get_context("spawn")
    shared = (spawn.Barrier(len(asked)), spawn.Lock())
    rows = []
    with ProcessPoolExecutor(len(asked), spawn, initialise, shared) as pool:
        for done in as_completed([pool.submit(row_of, *one, args.texts) for one in asked]):
            if done.exception():
                print(f"failed: {done.exception()}", flush=True)
                continue
            rows.append(row := done.result())
            print(json.dumps({key: value for key, value in row.items() if key != "kernels"}), flush=True)
            for one in row["kernels"][:LONGEST]:
                print(f"  {one['us_per_turn']:9.1f} us per turn, {one['per_turn']:5.1f} times  {one['kernel']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.exit(len(rows) < len(asked))


if __name__ == "__main__":
    main()
