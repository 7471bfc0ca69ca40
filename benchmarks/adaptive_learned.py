"""Weights of jobs that adapt, evolved on some workloads and judged on others, beside blind and knowing weights.

    python benchmarks/adaptive_learned.py pollux DATA GENERATIONS SEED ...
    python benchmarks/adaptive_learned.py sia DATA GENERATIONS SEED ...

`DATA` is that of `jaxsched reproduce-table`. The network is that of `jaxsched/adaptive/learned.py`. It learns by
antithetic evolution on lists mixed from the first half of the workloads of load 1.0, or of two traces in turn, and is
judged on the second half, also of loads and a trace from which nothing was learned. Blind weights are seconds done so
far, and known ones seconds left at a fair share of the GPUs, to the power -k; k is chosen on the first half.

What is asked of the learned weights: the ratio of the seeds' mean, less the point half way between blind and known
weights of the same list, over all lists of the second halves (one figure for Pollux' loads, one for Sia's traces), is
below 0 by more than two standard errors; and no list is 1% above the rule.

A generation takes 1 to 2 s of CPU time with `pollux`, 7 to 13 with `sia`.
"""

import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.adaptive import rounds
from jaxsched.adaptive.learned import FEATURES, HIDDEN, KINDS, NUMBERS, network, paces, save, weighted
from jaxsched.adaptive.papers.pollux_and_sia import RESTARTS_S, SLOWER, THREE_TYPES, workload_files
from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import ProfileLimits, read_applications
from jaxsched.adaptive.simulate import PUBLISHED_NODES, Rules, build
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, start
from jaxsched.adaptive.view import AllocationPolicy, View, whole_nodes
from jaxsched.adaptive.workload import applications_in, read_workload
from jaxsched.learning.evolved.evolution import begin, candidates, move
from jaxsched.learning.evolved.tasks import Strategy
from jaxsched.machine import compute_on_one_thread, enable_cache

EXPONENTS = (0.125, 0.25, 0.5, 0.75, 1.0)
STRATEGY = Strategy(pairs=8, sigma=0.15, step=0.03, momentum=0.9, squares=0.99)
LISTS = 2  # of a generation
LEAST_WINDOW = 32
LOADS, TRACES = ("1.0", "2.0", "0.5"), ("philly", "saturn", "newtrace")
LEARNED_FROM = ("1.0", "philly", "saturn")


class World(NamedTuple):
    """Lists of jobs of all loads, or traces, one axis before the others; which rows have which name."""

    world: AdaptiveWorld
    jobs: AdaptiveJobs
    rows: dict[str, np.ndarray]

    def first(self, name: str) -> np.ndarray:
        """The lists that are learned from."""
        return self.rows[name][: len(self.rows[name]) // 2]

    def second(self, name: str) -> np.ndarray:
        """The lists that are judged."""
        return self.rows[name][len(self.rows[name]) // 2 :]


def weights(numbers: jax.Array, view: View) -> jax.Array:
    """Those of the network, times seconds left to the power -k, or, for k < 0, seconds done to the power k."""
    fair, k = paces(view)[1], numbers[-1]
    seconds = jnp.where(k < 0, view.progress / fair, (view.work - view.progress) / fair)
    return network(numbers[:-1], view) * jnp.maximum(seconds, 60.0) ** -jnp.abs(k)


@functools.partial(jax.jit, static_argnums=0)
def _chunk(window: int, world, jobs, state, numbers):
    """`rounds.CHUNK` rounds of all lists, and how many jobs a window then needs."""

    def one(jobs, state, numbers):
        policy = AllocationPolicy("", lambda view: weighted(weights(numbers, view), view), whole_nodes)
        state = rounds._chunk(policy, window, world, jobs, state)
        return state, rounds._in_system(world, jobs, state).sum()

    state, there = jax.vmap(one)(jobs, state, numbers)
    return state, jnp.where((state.finish_s == jnp.inf).any(), jnp.maximum(there.max(), 1), 0)


def mean_jcts(world: AdaptiveWorld, jobs: AdaptiveJobs, numbers: np.ndarray) -> np.ndarray:
    """Of every list, with its numbers: [lists]. As many at once as a generation has, so that programs are the same."""
    lists, batch = len(numbers), LISTS * 2 * STRATEGY.pairs
    if lists > batch:
        parts = [slice(i, i + batch) for i in range(0, lists, batch)]
        return np.concatenate([mean_jcts(world, _rows(jobs, np.arange(lists)[i]), numbers[i]) for i in parts])
    at = np.minimum(np.arange(batch), lists - 1)
    jobs, numbers = _rows(jobs, at), numbers[at]
    state = jax.vmap(lambda jobs: start(world, jobs))(jobs)
    size, needed = jobs.real.shape[1], 1
    while needed:
        window = min(max(LEAST_WINDOW, 1 << (needed - 1).bit_length()), size)
        state, there = _chunk(window, world, jobs, state, numbers)
        needed = int(there)
    jct_s = np.where(jobs.real, state.finish_s - np.where(jobs.real, jobs.submit_s, 0.0), 0.0)
    return (jct_s.sum(1) / np.asarray(jobs.real).sum(1))[:lists]


def _rows(jobs: AdaptiveJobs, rows: np.ndarray) -> AdaptiveJobs:
    return jax.tree.map(lambda leaf: leaf[rows], jobs)


def mixed(where: World, name: str, rng: np.random.Generator) -> AdaptiveJobs:
    """Lists whose i-th job is the i-th of one of the lists that are learned from."""
    whole, real = where.jobs.real.shape[1], np.asarray(where.jobs.real)
    size = int(real[where.first(name)].sum(1).min())
    pick = rng.choice(where.first(name), (LISTS, size))
    order = np.argsort(np.asarray(where.jobs.submit_s)[pick, np.arange(size)], axis=1, kind="stable")
    row = np.pad(np.take_along_axis(pick, order, 1), ((0, 0), (0, whole - size)), mode="edge")
    column = np.concatenate([order, np.tile(np.arange(size, whole), (LISTS, 1))], axis=1)
    made = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[row, column]), where.jobs)
    return made.replace(real=made.real & (np.arange(whole) < size))


def learn(where: World, names: Sequence[str], generations: int, seed: int, out: Path) -> np.ndarray:
    """The numbers of the network; a folder that `--policy` plays is written after every generation."""
    rng = np.random.default_rng(seed)
    point = np.concatenate([rng.normal(size=NUMBERS - HIDDEN) / FEATURES**0.5, np.zeros(HIDDEN)])
    search, begun = begin(point), time.process_time()
    while search.generation < generations:
        name = names[search.generation % len(names)]
        directions, points = candidates(search, rng, STRATEGY)
        many = jax.tree.map(functools.partial(jnp.repeat, repeats=len(points), axis=0), mixed(where, name, rng))
        numbers = np.tile(np.pad(points, ((0, 0), (0, 1))), (LISTS, 1))
        costs = mean_jcts(where.world, many, numbers).reshape(LISTS, -1)
        search = move(search, directions, costs, STRATEGY)
        kind = KINDS[len(where.world.widths) > 1]
        save(out, {kind: search.average.tolist()}, learned_from={"lists": [*names], "generation": search.generation})
    print(f"seed {seed}: {search.generation} generations, {time.process_time() - begun:.0f} CPU s", flush=True)
    return search.average


def judge(where: World, name: str, learned: dict[int, np.ndarray]) -> np.ndarray:
    """Prints ratios to the rule on the second half of the lists, and on the first, by which k, or a seed, is chosen.

    Returns:
        Of every list of the second half, the ratio of the seeds' mean less the point half way between the best blind
        and the best known weights, of which the rule's own, k = 0, is one of each: [lists].
    """
    powers = np.zeros((1 + 2 * len(EXPONENTS) + len(learned), NUMBERS + 1))
    powers[1 : 1 + 2 * len(EXPONENTS), -1] = [*(-k for k in EXPONENTS), *EXPONENTS]
    powers[1 + 2 * len(EXPONENTS) :, :-1] = np.stack(list(learned.values()))
    rows, half = where.rows[name], len(where.first(name))
    many = _rows(where.jobs, np.tile(rows, len(powers)))
    means = mean_jcts(where.world, many, np.repeat(powers, len(rows), axis=0)).reshape(-1, len(rows))
    found, k = means / means[0], len(EXPONENTS)
    by = {"blind": [0, *range(1, 1 + k)], "known": [0, *range(1 + k, 1 + 2 * k)]}
    best = {kind: min(tried, key=lambda row: found[row, :half].mean()) for kind, tried in by.items()}
    table = {f"{kind} {abs(powers[row, -1]):g}": found[row] for kind, row in best.items()}
    table |= {f"seed {seed}": row for seed, row in zip(learned, found[1 + 2 * k :], strict=True)}
    print(f"{name:9} the rule    {means[0, half:].mean():.1f} s", flush=True)
    for label, row in table.items():
        each = " ".join(f"{one:.3f}" for one in row[half:])
        print(f"{name:9} {label:11} {interval(row[half:])} ({each}); first half {row[:half].mean():.3f}", flush=True)
    past = found[1 + 2 * k :].mean(0) - (found[best["blind"]] + found[best["known"]]) / 2
    print(
        f"{name:9} less half way {interval(past[half:])} ({' '.join(f'{one:+.3f}' for one in past[half:])})", flush=True
    )
    return past[half:]


def interval(of_lists: np.ndarray) -> str:
    """The mean, and two standard errors of it."""
    return f"{of_lists.mean():.3f} +- {2 * of_lists.std(ddof=1) / len(of_lists) ** 0.5:.3f}"


def world_of(base: str, data: Path) -> World:
    """The workloads: of Pollux by load, of Sia by trace."""
    if base == "pollux":
        apps, nodes, rules = read_applications(data / "profiles"), PUBLISHED_NODES, Rules()
        folders = {load: data / f"workloads-{load}" for load in LOADS}
    else:
        limits = {name: ProfileLimits(slower=times) for name, times in SLOWER.items()}
        nodes, rules = THREE_TYPES, Rules(restart_s=RESTARTS_S)
        folders = {trace: data / "workloads" / trace for trace in TRACES}
        names = set().union(*(applications_in(path) for folder in folders.values() for path in workload_files(folder)))
        apps = read_applications(data / "profiles", tuple(kind.kind for kind in nodes), limits, names)
    policy = POLICIES["pollux" if base == "pollux" else "sia-greedy"]
    lists = {name: [read_workload(path, apps) for path in workload_files(path)] for name, path in folders.items()}
    world, jobs = build(policy, apps, [jobs for of_name in lists.values() for jobs in of_name], nodes, rules)
    ends = np.cumsum([len(of_name) for of_name in lists.values()])
    return World(world, jobs, {name: np.arange(end - len(of), end) for (name, of), end in zip(lists.items(), ends)})


def main(base: str, data: Path, generations: int, seeds: list[int]) -> None:
    with jax.enable_x64(True):
        where = world_of(base, data)
        names = [name for name in where.rows if name in LEARNED_FROM]
        outs = {seed: Path(f"adaptive-learned-{base}-{seed}") for seed in seeds}
        learned = {seed: learn(where, names, generations, seed, out) for seed, out in outs.items()}
        past = [judge(where, name, learned) for name in where.rows]
        print(f"all       less half way {interval(np.concatenate(past))}, over {sum(map(len, past))} lists")


if __name__ == "__main__":
    compute_on_one_thread()
    enable_cache()
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), list(map(int, sys.argv[4:])))
