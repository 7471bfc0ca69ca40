"""Weights of jobs that adapt, evolved on some workloads and judged on others, beside blind and knowing weights.

    python benchmarks/adaptive_learned.py pollux DATA [GENERATIONS]
    python benchmarks/adaptive_learned.py sia DATA [GENERATIONS]

`DATA` is that of `jaxsched reproduce-table`. The sum that `pollux`, or `sia-greedy` on three GPU types, makes large is
weighted by job. A small network of what is seen of a job gives the logarithm of its weight. It does not see how much
work is left, nor the name of the application. It learns by antithetic evolution on lists mixed from workloads 1 to 4,
and is judged on the others. Blind weights are seconds done so far, and known ones seconds left at a fair share of the
GPUs, to the power -k; their k are chosen on the workloads that are learned from, too.
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

from jaxsched.adaptive import rounds, sia
from jaxsched.adaptive.choosing import by_gain
from jaxsched.adaptive.placing import whole_nodes
from jaxsched.adaptive.policies import POLICIES, harm, whole_choices
from jaxsched.adaptive.profiles import ProfileLimits, read_applications
from jaxsched.adaptive.published import workload_files
from jaxsched.adaptive.sia_table import RESTARTS_S, SLOWER, THREE_TYPES
from jaxsched.adaptive.simulate import PUBLISHED_NODES, Rules, build
from jaxsched.adaptive.state import AdaptiveJobs, AdaptiveWorld, start
from jaxsched.adaptive.view import Allocation, AllocationPolicy, View
from jaxsched.adaptive.workload import applications_in, read_workload
from jaxsched.learning.evolved.evolution import Strategy, begin, candidates, move

EXPONENTS = (0.125, 0.25, 0.5, 0.75, 1.0)
LEARNED_FROM = 4  # workloads, the first ones
HIDDEN, FEATURES = 10, 10
NUMBERS = (FEATURES + 1) * HIDDEN + HIDDEN
STRATEGY = Strategy(pairs=8, sigma=0.15, step=0.03, momentum=0.9, squares=0.99)
LISTS, EVERY = 3, 25  # lists of a generation; generations between judgements on the lists that are learned from


class World(NamedTuple):
    """Lists of jobs, one axis before the others, and what decides."""

    base: str
    world: AdaptiveWorld
    jobs: AdaptiveJobs
    names: Sequence[str]


def paces(view: View) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Goodput with the fewest GPUs, with a fair share, and with four times the fewest, on the type where it is most."""
    share = view.total // jnp.maximum(view.active.sum(), 1)

    def at(gpus, t):
        return view.goodput_at(jnp.clip(gpus, view.least_gpus, view.most_gpus)[:, None], t)[:, 0]

    types = range(len(view.widths))
    fewest = functools.reduce(jnp.maximum, [at(view.least_gpus, t) for t in types])
    fair = functools.reduce(jnp.maximum, [at(share[t], t) for t in types])
    more = functools.reduce(jnp.maximum, [at(4 * view.least_gpus, t) for t in types])
    return fewest, fair, more


def features(view: View) -> jax.Array:
    """What the network sees of every job: [J, FEATURES]."""
    fewest, fair, more = paces(view)
    minute = 60.0
    return jnp.stack(
        [
            jnp.log1p(view.progress / fair / minute) / 2 - 1,
            jnp.log1p(view.age_s / minute) / 2 - 1,
            jnp.log1p(view.service / minute) / 2 - 1,
            jnp.log(jnp.maximum(fewest, 1e-9)) / 2,
            jnp.log(jnp.maximum(fair / fewest, 1e-9)),
            jnp.log(jnp.maximum(more / fewest, 1e-9)) * 2 - 2,
            jnp.full(view.gpus.shape, jnp.log(jnp.maximum(view.active.sum(), 1) / view.total.sum())),
            view.restarts / 5.0 - 1,
            (view.gpus > 0) * 1.0,
            jnp.log1p(view.gpus) - 1,
        ],
        axis=-1,
    )


def network(numbers: jax.Array, view: View) -> jax.Array:
    """Weights of jobs."""
    first = numbers[: (FEATURES + 1) * HIDDEN].reshape(FEATURES + 1, HIDDEN)
    hidden = jnp.tanh(features(view) @ first[:-1] + first[-1])
    return jnp.exp(jnp.clip(hidden @ numbers[-HIDDEN:], -4.0, 4.0))


def by_seconds(numbers: jax.Array, view: View) -> jax.Array:
    """Seconds left to the power -k, or, for k < 0, seconds done to the power k."""
    fair, k = paces(view)[1], numbers[0]
    seconds = jnp.where(k < 0, view.progress / fair, (view.work - view.progress) / fair)
    return jnp.maximum(seconds, 60.0) ** -jnp.abs(k)


def allocate(base: str, weights: Callable, numbers: jax.Array, view: View) -> Allocation:
    """The rule, with weights."""
    weight = weights(numbers, view)[:, None]
    if base == "pollux":
        choices = whole_choices(view)
        return Allocation(gpus=choices[by_gain(harm(view, choices) * weight, choices, view.total[:1])])
    gpus, kind = sia.choices_of(view)
    value = sia._finite(sia.values(view) * weight)
    return sia._allocation(view, by_gain(value, jnp.asarray(gpus, jnp.int32), view.total, list(kind)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _chunk(base: str, weights: Callable, window: int, world, jobs, state, numbers):
    """`rounds.CHUNK` rounds of all lists, and how many jobs a window then needs."""

    def one(jobs, state, numbers):
        policy = AllocationPolicy("", functools.partial(allocate, base, weights, numbers), whole_nodes)
        state = rounds._chunk(policy, window, world, jobs, state)
        return state, rounds._in_system(world, jobs, state).sum()

    state, there = jax.vmap(one)(jobs, state, numbers)
    return state, jnp.where((state.finish_s == jnp.inf).any(), jnp.maximum(there.max(), 1), 0)


def mean_jcts(where: World, jobs, weights: Callable, numbers: np.ndarray) -> np.ndarray:
    """Of every list, with its numbers: [lists]."""
    state = jax.vmap(lambda jobs: start(jobs, where.world.node_gpus.shape[0]))(jobs)
    size, needed = jobs.real.shape[1], 1
    while needed:
        window = min(max(rounds.LEAST_WINDOW, 1 << (needed - 1).bit_length()), size)
        state, there = _chunk(where.base, weights, window, where.world, jobs, state, jnp.asarray(numbers))
        needed = int(there)
    jct_s = np.where(jobs.real, state.finish_s - np.where(jobs.real, jobs.submit_s, 0.0), 0.0)
    return jct_s.sum(1) / np.asarray(jobs.real).sum(1)


def mixed(jobs, rng: np.random.Generator, lists: int):
    """Lists whose i-th job is the i-th of one of the lists that are learned from."""
    size = int(np.asarray(jobs.real).sum(1).min())
    pick = rng.integers(0, LEARNED_FROM, (lists, size))
    submit_s = np.asarray(jobs.submit_s)[pick, np.arange(size)]
    order = np.argsort(submit_s, axis=1, kind="stable")
    row = np.take_along_axis(pick, order, 1)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[row, order]), jobs)


def learn(where: World, generations: int, seed: int) -> np.ndarray:
    """The numbers of the network."""
    rng = np.random.default_rng(seed)
    point = np.concatenate([rng.normal(size=NUMBERS - HIDDEN) / FEATURES**0.5, np.zeros(HIDDEN)])
    search, begun = begin(point), time.process_time()
    for generation in range(generations):
        lists = mixed(where.jobs, rng, LISTS)
        directions, points = candidates(search, rng, STRATEGY)
        many = jax.tree.map(functools.partial(jnp.repeat, repeats=len(points), axis=0), lists)
        costs = mean_jcts(where, many, network, np.tile(points, (LISTS, 1))).reshape(LISTS, -1)
        search = move(search, directions, costs, STRATEGY)
        if generation % EVERY == 0 or generation == generations - 1:
            print(f"generation {generation}: {costs.mean():.1f} s, CPU {time.process_time() - begun:.0f} s", flush=True)
            np.save(f"adaptive-learned-{where.base}-{seed}.npy", search.average)
    return search.average


def judge(where: World, rows: range, numbers: np.ndarray, exponents: tuple[float, float]) -> None:
    """Prints mean JCTs of some lists, and ratios to the rule without weights."""
    jobs = jax.tree.map(lambda leaf: leaf[rows.start : rows.stop], where.jobs)
    played = {"no weights": (by_seconds, [0.0]), "blind": (by_seconds, [-exponents[0]])}
    played |= {"known": (by_seconds, [exponents[1]]), "learned": (network, numbers)}
    base = None
    for name, (weights, given) in played.items():
        means = mean_jcts(where, jobs, weights, np.tile(given, (len(rows), 1)))
        base = means if base is None else base
        ratio = means / base
        error = 2 * ratio.std(ddof=1) / len(rows) ** 0.5
        print(f"{where.names[0]:16} {name:10} {means.mean():9.1f} s  {ratio.mean():.3f} +- {error:.3f}", flush=True)


def best_exponents(where: World) -> tuple[float, float]:
    """The best blind and known k on the lists that are learned from."""
    found = []
    jobs = jax.tree.map(lambda leaf: jnp.tile(leaf[:LEARNED_FROM].T, len(EXPONENTS)).T, where.jobs)
    for sign in (-1.0, 1.0):
        given = np.repeat(np.array(EXPONENTS)[:, None], LEARNED_FROM, axis=0) * sign
        means = mean_jcts(where, jobs, by_seconds, given).reshape(len(EXPONENTS), -1).mean(1)
        found.append(EXPONENTS[int(means.argmin())])
    return found[0], found[1]


def worlds_of(base: str, data: Path) -> list[World]:
    """The workloads: of Pollux by load, of Sia by trace."""
    if base == "pollux":
        apps, nodes, rules = read_applications(data / "profiles"), PUBLISHED_NODES, Rules()
        folders = [data / f"workloads-{load}" for load in ("1.0", "2.0")]
    else:
        limits = {name: ProfileLimits(slower=times) for name, times in SLOWER.items()}
        nodes, rules = THREE_TYPES, Rules(restart_s=RESTARTS_S)
        folders = [data / "workloads" / trace for trace in ("philly", "saturn")]
        names = set().union(*(applications_in(path) for folder in folders for path in workload_files(folder)))
        apps = read_applications(data / "profiles", tuple(kind.kind for kind in nodes), limits, names)
    name = "pollux" if base == "pollux" else "sia-greedy"
    found = []
    for folder in folders:
        lists = [read_workload(path, apps) for path in workload_files(folder)]
        found.append(World(base, *build(POLICIES[name], apps, lists, nodes, rules), [folder.name]))
    return found


def main(base: str, data: Path, generations: int) -> None:
    with jax.enable_x64(True):
        worlds = worlds_of(base, data)
        numbers = learn(worlds[0], generations, seed=1)
        for where in worlds:
            exponents, last = best_exponents(where), where.jobs.real.shape[0]
            print(f"{where.names[0]}: k = {exponents[0]:g} (blind), {exponents[1]:g} (known)")
            judge(where, range(0 if where.names[0] == "saturn" else LEARNED_FROM, last), numbers, exponents)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 300)
