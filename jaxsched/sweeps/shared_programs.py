"""Runs that differ only in sweepable numbers (`sweeps.plan`): one program for them, and batches trained in it."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, PyTree, Shaped

from jaxsched.dynamics.batching import lane_by_lane
from jaxsched.errors import UserError
from jaxsched.io.json_file import append, read_rows
from jaxsched.learning import rollout
from jaxsched.learning.chunk import chunk, initial, place_state, validate
from jaxsched.learning.config import TrainConfig
from jaxsched.learning.devices import map_shards, place
from jaxsched.learning.loop import METRICS_FILE, TIMING_FILE, Programs, cut_logs, finish, write_policy
from jaxsched.learning.setting import Setting, assemble_setting, make_setting, settle_path
from jaxsched.learning.state import TrainState, has_step, restore, save
from jaxsched.learning.untrained import UNTRAINED_FOLDER, has_untrained
from jaxsched.machine import loop_options
from jaxsched.sweeps.plan import TRACED, Program, Sweep, programs, replace_values, rows_of, shape_key, value_of

_WRITTEN = ("weights", "best_weights", "best_jct_s", "chunk")  # of a state, what policies are written from


class RunArguments(NamedTuple):
    """What tells one run from another; of a batch of runs, every leaf has a leading axis over them."""

    values: dict[str, PyTree]  # of `TRACED`, by dotted name
    arrays: dict[int, Array]  # of the worlds' arrays, by their position


class SharedPrograms:
    """The programs of runs with one `shape_key`; each is compiled once for single runs, once for batches of a size."""

    def __init__(self, configs: Sequence[TrainConfig]) -> None:
        assert len({shape_key(config) for config in configs}) == 1
        self.configs = [settle_path(config) for config in configs]
        self.settings = [make_setting(config) for config in self.configs]
        self._base = self.settings[0]
        differing = [name for name in TRACED if len({value_of(config, name) for config in configs}) > 1]
        rows = [jax.tree.leaves(_arrays(setting)) for setting in self.settings]
        columns = {i: column for i, column in enumerate(zip(*rows, strict=True)) if not _equal(column)}
        self._arguments = [
            RunArguments(
                values={name: jax.tree.map(jnp.asarray, value_of(config, name)) for name in differing},
                arrays={i: column[run] for i, column in columns.items()},
            )
            for run, config in enumerate(configs)
        ]
        self._one = self._programs(lambda function: function)
        self._batches: dict[int, tuple[Callable, ...]] = {}  # by devices

    def of_run(self, index: int) -> Programs:
        """The programs of one run."""
        shards = self._base.ppo.shards
        return self._bind(self._one, self._arguments[index], lambda state: place_state(state, shards))

    def of_batch(self, indices: Sequence[int]) -> Programs:
        """Those of a batch of runs: every argument and result has a leading axis over them.

        Runs without shards of their own are shared out evenly among as many devices as that goes with.
        """
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(self._arguments[i] for i in indices))
        if not jax.tree.leaves(stacked):
            raise ValueError("the runs of a batch must differ in something")
        devices = math.gcd(len(indices), jax.local_device_count()) if self._base.ppo.shards == 1 else 1
        if devices not in self._batches:
            self._batches[devices] = self._programs(functools.partial(_over_runs, devices=devices))
        _, stacked = place(None, stacked, devices)
        return self._bind(self._batches[devices], stacked, lambda state: place(None, state, devices)[1])

    def memory_bytes(self) -> int:
        """What one run holds at least: its state twice (of weights, moments and environments) and a chunk's experience.

        From shapes, nothing is compiled; what XLA needs in between comes on top.
        """
        setting = self._base
        state = jax.eval_shape(lambda: initial(setting))

        def play(state: TrainState) -> rollout.Experience:
            return rollout.collect(jax.random.key(0), setting.rollout, state.weights, state.draws, state.worlds)[1]

        experience = _bytes(jax.eval_shape(play, state))
        return 2 * _bytes(state) + int((1 + setting.ppo.keep) * experience)

    def _setting(self, own: RunArguments) -> Setting:
        base = self._base
        leaves, tree = jax.tree.flatten(_arrays(base))
        params, clusters, gpus, jobs = tree.unflatten([own.arrays.get(i, leaf) for i, leaf in enumerate(leaves)])
        arrays = {"params": params, "clusters": clusters, "gpus": gpus, "jobs": jobs}
        return assemble_setting(base.worlds._replace(**arrays), replace_values(self.configs[0], own.values))

    def _programs(self, over_runs: Callable) -> tuple[Callable, ...]:
        jit = functools.partial(jax.jit, compiler_options=loop_options())
        return (
            jax.jit(over_runs(lambda own: initial(self._setting(own)))),
            jit(over_runs(lambda own, state: chunk(self._setting(own), state)), donate_argnums=1),
            jit(over_runs(lambda own, weights: validate(self._setting(own), weights))),
        )

    def _bind(
        self, programs: tuple[Callable, ...], own: RunArguments, put: Callable[[TrainState], TrainState]
    ) -> Programs:
        return Programs(*(functools.partial(program, own) for program in programs), place=put)


def _over_runs(function: Callable, devices: int) -> Callable:
    """`function` of one run as one of many, on so many devices."""
    many = jax.vmap(lane_by_lane(function))
    if devices == 1:
        return many
    spread = map_shards(lambda _, own: (None, many(*own)), devices)
    return lambda *own: spread(None, own)[1]


def _arrays(setting: Setting) -> tuple:
    worlds = setting.worlds
    return worlds.params, worlds.clusters, worlds.gpus, worlds.jobs


def _equal(column: Sequence[Array]) -> bool:
    return all(np.array_equal(column[0], other) for other in column[1:])


def _bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def memory_mib(program: Program) -> float:
    """What the runs that are trained at once hold at least, from shapes; a second."""
    shared = SharedPrograms([point.config for point in program.points[:1]])
    return program.runs_at_once * shared.memory_bytes() / 2**20


def check_memory(sweep: Sweep, most_bytes: int | None) -> None:
    """UserError if a program with unfinished points holds more than a worker has; a second per program."""
    if most_bytes is None:
        return
    finished = {row["id"] for row in rows_of(sweep)}
    for number, program in enumerate(programs(sweep), 1):
        if all(sweep.id_of(point) in finished for point in program.points):
            continue
        needed, most = memory_mib(program), most_bytes / 2**20
        if needed > most:
            less = "a smaller runs_at_once" if program.runs_at_once > 1 else "fewer ppo.num_envs or ppo.steps"
            raise UserError(
                f"{sweep.path}: program {number}, {program.points[0].name}: needs at least {needed:,.0f} MiB, a worker "
                f"has {most:,.0f}; take {less}"
            )


def train_batched(
    shared: SharedPrograms,
    indices: Sequence[int],
    run_dirs: Sequence[Path],
    state_folder: Path,
    *,
    report: Callable[[int, float], None] | None = None,
    save_every: int = 10,
) -> None:
    """Train the runs `indices` of `shared` to their end, each into its own folder, or go on if `state_folder` has them.

    Every folder gets `policy/`, `metrics.jsonl` and `timing.jsonl` as from `train`; seconds are a run's share of all.
    `report` is called with the chunks done and the seconds so far.
    """
    config = shared.configs[indices[0]]
    programs = shared.of_batch(indices)
    state = _begin(programs, run_dirs, state_folder)
    if int(state.chunk[0]) == 0 and not all(map(has_untrained, run_dirs)):
        first = state.replace(best_jct_s=programs.validate(state.weights))
        for index, folder, own in zip(indices, run_dirs, _states_of(first, range(len(indices))), strict=True):
            write_policy(folder, shared.configs[index], shared.settings[index], own, UNTRAINED_FOLDER)
    chunks = config.ppo.chunks
    wall, cpu = time.perf_counter(), time.process_time()
    for done in range(int(state.chunk[0]) + 1, chunks + 1):
        state, metrics = programs.step(state)
        metrics = jax.device_get(metrics)  # at once: a GPU would hand over a thousand numbers one by one
        rows = [
            {"chunk": done, "chunks": chunks} | {name: value[run].item() for name, value in metrics.items()}
            for run in range(len(indices))
        ]
        if done % config.validation.every == 0 or done == chunks:
            state = _keep_best(shared, indices, run_dirs, state, np.asarray(programs.validate(state.weights)), rows)
            state = programs.place(state)
        timing = {
            "wall_s": (time.perf_counter() - wall) / len(indices),
            "cpu_s": (time.process_time() - cpu) / len(indices),
        }
        for folder, row in zip(run_dirs, rows, strict=True):
            append(folder / METRICS_FILE, row)
            append(folder / TIMING_FILE, {"chunk": done} | timing)
        if done % save_every == 0 or done == chunks:
            save(state_folder, state, config, chunks=done)
        if report:
            report(done, time.perf_counter() - wall)
    for index, folder, own in zip(indices, run_dirs, _states_of(state, range(len(indices))), strict=True):
        finish(folder, shared.configs[index], shared.settings[index], own)


def _begin(programs: Programs, run_dirs: Sequence[Path], state_folder: Path) -> TrainState:
    """The states to go on from, the newest that were saved or fresh ones; every folder's logs end where they do."""
    state = programs.initial()
    if has_step(state_folder):
        state = restore(state_folder, state)
    state = programs.place(state)
    for folder in run_dirs:
        folder.mkdir(parents=True, exist_ok=True)
        cut_logs(folder, int(state.chunk[0]))
    return state


def _keep_best(
    shared: SharedPrograms,
    indices: Sequence[int],
    run_dirs: Sequence[Path],
    state: TrainState,
    jct_s: Float32[np.ndarray, "runs"],
    rows: list[dict],
) -> TrainState:
    """The state with the best weights of every run up to date; writes those that are new, and adds to the rows."""
    better = jct_s < np.asarray(state.best_jct_s)

    def pick(new: Shaped[Array, "runs *leaf"], old: Shaped[Array, "runs *leaf"]) -> Shaped[Array, "runs *leaf"]:
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    state = state.replace(
        best_weights=jax.tree.map(pick, state.weights, state.best_weights),
        best_jct_s=pick(jnp.asarray(jct_s), state.best_jct_s),
    )
    for row, one in zip(rows, jct_s, strict=True):
        row["validation_jct_s"] = float(one)
    written = np.flatnonzero(better).tolist()
    for run, own in zip(written, _states_of(state, written), strict=True):
        index = indices[run]
        write_policy(run_dirs[run], shared.configs[index], shared.settings[index], own)
    return state


def _states_of(states: TrainState, runs: Sequence[int]) -> Iterator[TrainState]:
    """The states of single runs as far as policies are written from them, fetched from the device at once.

    All else is as in `states`.
    """
    of_all = jax.device_get({name: getattr(states, name) for name in _WRITTEN})
    for run in runs:
        yield states.replace(**jax.tree.map(lambda leaf, run=run: leaf[run], of_all))


def sum_seconds(run_dir: Path) -> dict[str, float]:
    """Wall and CPU seconds of a run, compilation included, summed over the processes that it took.

    `chunk_wall_s` and `chunk_cpu_s` are those of its median chunk, which has neither compilation nor validation in it.
    """
    rows = read_rows(run_dir / TIMING_FILE)
    seconds = {}
    for name in ("wall_s", "cpu_s"):
        passed = [row[name] for row in rows]
        steps = [now - before if now >= before else now for before, now in itertools.pairwise([0.0, *passed])]
        seconds |= {name: sum(steps), f"chunk_{name}": statistics.median(steps)}
    return seconds
