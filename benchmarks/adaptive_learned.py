"""Weights of jobs that adapt, evolved on some workloads and judged on others, beside blind and knowing weights.

    python benchmarks/adaptive_learned.py pollux DATA [SECONDS] [SEED ...]
    python benchmarks/adaptive_learned.py sia DATA [SECONDS] [SEED ...]

`DATA` is that of `jaxsched reproduce-table`; SECONDS are CPU seconds of learning for each seed. The network is that of
`jaxsched/adaptive/learned.py`. It learns by antithetic evolution on lists mixed from the first half of the workloads
of every load, or trace, one after another, and is judged on the second half. Blind weights are seconds done so far, and
known ones seconds left at a fair share of the GPUs, to the power -k; their k are chosen on the first half, too.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.adaptive import rounds
from jaxsched.adaptive.learned import FEATURES, HIDDEN, NUMBERS, network, paces, weighted
from jaxsched.adaptive.papers.pollux_table import workload_files
from jaxsched.adaptive.papers.sia_table import RESTARTS_S, SLOWER, THREE_TYPES
from jaxsched.adaptive.placing import whole_nodes
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import ProfileLimits, read_applications
from jaxsched.adaptive.simulate import PUBLISHED_NODES, Rules, build
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, start
from jaxsched.adaptive.view import AllocationPolicy, View
from jaxsched.adaptive.workload import applications_in, read_workload
from jaxsched.learning.evolved.evolution import Strategy, begin, candidates, move
from jaxsched.machine import compute_on_one_thread, enable_cache

EXPONENTS = (0.125, 0.25, 0.5, 0.75, 1.0)
STRATEGY = Strategy(pairs=8, sigma=0.15, step=0.03, momentum=0.9, squares=0.99)
LISTS = 2  # of a generation
LOADS, TRACES = ("1.0", "2.0"), ("philly", "saturn", "newtrace")
LONG = "newtrace"  # 960 jobs to a list: judged only
UNSEEN = "0.5"  # a load that is judged only


class World(NamedTuple):
    """Lists of jobs, one axis before the others, and what they are called."""

    world: AdaptiveWorld
    jobs: AdaptiveJobs
    name: str

    @property
    def half(self) -> int:
        """Lists that are learned from."""
        return self.jobs.real.shape[0] // 2


def by_seconds(numbers: jax.Array, view: View) -> jax.Array:
    """Seconds left to the power -k, or, for k < 0, seconds done to the power k."""
    fair, k = paces(view)[1], numbers[0]
    seconds = jnp.where(k < 0, view.progress / fair, (view.work - view.progress) / fair)
    return jnp.maximum(seconds, 60.0) ** -jnp.abs(k)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _chunk(weights: Callable, window: int, world, jobs, state, numbers):
    """`rounds.CHUNK` rounds of all lists, and how many jobs a window then needs."""

    def one(jobs, state, numbers):
        policy = AllocationPolicy("", lambda view: weighted(weights(numbers, view), view), whole_nodes)
        state = rounds._chunk(policy, window, world, jobs, state)
        return state, rounds._in_system(world, jobs, state).sum()

    state, there = jax.vmap(one)(jobs, state, numbers)
    return state, jnp.where((state.finish_s == jnp.inf).any(), jnp.maximum(there.max(), 1), 0)


def mean_jcts(world: AdaptiveWorld, jobs: AdaptiveJobs, weights: Callable, numbers: np.ndarray) -> np.ndarray:
    """Of every list, with its numbers: [lists]."""
    state = jax.vmap(lambda jobs: start(jobs, world.node_gpus.shape[0]))(jobs)
    size, needed = jobs.real.shape[1], 1
    while needed:
        window = min(max(rounds.LEAST_WINDOW, 1 << (needed - 1).bit_length()), size)
        state, there = _chunk(weights, window, world, jobs, state, jnp.asarray(numbers))
        needed = int(there)
    jct_s = np.where(jobs.real, state.finish_s - np.where(jobs.real, jobs.submit_s, 0.0), 0.0)
    return jct_s.sum(1) / np.asarray(jobs.real).sum(1)


def mixed(where: World, rng: np.random.Generator) -> AdaptiveJobs:
    """Lists whose i-th job is the i-th of one of the lists that are learned from."""
    size = int(np.asarray(where.jobs.real).sum(1).min())
    pick = rng.integers(0, where.half, (LISTS, size))
    submit_s = np.asarray(where.jobs.submit_s)[pick, np.arange(size)]
    order = np.argsort(submit_s, axis=1, kind="stable")
    row = np.take_along_axis(pick, order, 1)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[row, order]), where.jobs)


def learn(worlds: Sequence[World], cpu_s: float, seed: int, out: Path) -> np.ndarray:
    """The numbers of the network; they are written after every generation."""
    rng = np.random.default_rng(seed)
    point = np.concatenate([rng.normal(size=NUMBERS - HIDDEN) / FEATURES**0.5, np.zeros(HIDDEN)])
    search, begun = begin(point), time.process_time()
    while time.process_time() - begun < cpu_s:
        where = worlds[search.generation % len(worlds)]
        directions, points = candidates(search, rng, STRATEGY)
        many = jax.tree.map(functools.partial(jnp.repeat, repeats=len(points), axis=0), mixed(where, rng))
        costs = mean_jcts(where.world, many, network, np.tile(points, (LISTS, 1))).reshape(LISTS, -1)
        search = move(search, directions, costs, STRATEGY)
        np.save(out, search.average)
    print(f"seed {seed}: {search.generation} generations, {time.process_time() - begun:.0f} CPU s", flush=True)
    return search.average


def ratios(where: World, weights: Callable, numbers: np.ndarray, base: np.ndarray | float = 1.0) -> np.ndarray:
    """Mean JCTs of all lists by several weights over those of the rule without weights: [weights, lists]."""
    lists = where.jobs.real.shape[0]
    many = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * len(numbers)), where.jobs)
    return mean_jcts(where.world, many, weights, np.repeat(numbers, lists, axis=0)).reshape(-1, lists) / base


def judge(where: World, learned: dict[int, np.ndarray]) -> None:
    """Prints ratios on the second half of the lists, and on the first, by which k, or a seed, may be chosen."""
    powers = np.array([0.0, *(-k for k in EXPONENTS), *EXPONENTS])
    means = ratios(where, by_seconds, powers[:, None])
    found = means[1:] / means[0]
    seen = found[:, : where.half].mean(1)
    blind, known = seen[: len(EXPONENTS)].argmin(), len(EXPONENTS) + seen[len(EXPONENTS) :].argmin()
    rows = {f"blind {-powers[1 + blind]:g}": found[blind], f"known {powers[1 + known]:g}": found[known]}
    if learned:
        by_network = ratios(where, network, np.stack(list(learned.values())), means[0])
        rows |= {f"seed {seed}": row for seed, row in zip(learned, by_network, strict=True)}
    for name, row in rows.items():
        held = row[where.half :]
        error, each = 2 * held.std(ddof=1) / len(held) ** 0.5, " ".join(f"{one:.3f}" for one in held)
        first = row[: where.half].mean()
        print(f"{where.name:9} {name:11} {held.mean():.3f} +- {error:.3f} ({each}); first half {first:.3f}", flush=True)


def worlds_of(base: str, data: Path) -> list[World]:
    """The workloads: of Pollux by load, of Sia by trace."""
    if base == "pollux":
        apps, nodes, rules = read_applications(data / "profiles"), PUBLISHED_NODES, Rules()
        folders = {load: data / f"workloads-{load}" for load in (*LOADS, UNSEEN)}
    else:
        limits = {name: ProfileLimits(slower=times) for name, times in SLOWER.items()}
        nodes, rules = THREE_TYPES, Rules(restart_s=RESTARTS_S)
        folders = {trace: data / "workloads" / trace for trace in TRACES}
        names = set().union(*(applications_in(path) for folder in folders.values() for path in workload_files(folder)))
        apps = read_applications(data / "profiles", tuple(kind.kind for kind in nodes), limits, names)
    policy = POLICIES["pollux" if base == "pollux" else "sia-greedy"]
    found = []
    for name, folder in folders.items():
        lists = [read_workload(path, apps) for path in workload_files(folder)]
        found.append(World(*build(policy, apps, lists, nodes, rules), name))
    return found


def main(base: str, data: Path, cpu_s: float, seeds: list[int]) -> None:
    with jax.enable_x64(True):
        worlds = worlds_of(base, data)
        seen = [where for where in worlds if where.name not in (UNSEEN, LONG)]
        learned = {seed: learn(seen, cpu_s, seed, Path(f"adaptive-learned-{base}-{seed}.npy")) for seed in seeds}
        for where in worlds:
            judge(where, learned)


if __name__ == "__main__":
    compute_on_one_thread()
    enable_cache()
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), list(map(int, sys.argv[4:])) or [1, 2, 3])
