"""A batch of runs in one vmapped program: `loop.train` for all of them at once."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, Shaped

from jaxsched.io.json_lines import append, read_rows
from jaxsched.learning.loop import METRICS_FILE, TIMING_FILE, Programs, cut_logs, finish, write_policy
from jaxsched.learning.state import TrainState, has_step, restore, save
from jaxsched.sweeps.shared_programs import SharedPrograms


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
    config = shared.settings[indices[0]].config
    programs = shared.of_batch(indices)
    state = _begun(programs, run_dirs, state_folder)
    chunks = config.ppo.chunks
    wall, cpu = time.perf_counter(), time.process_time()
    for done in range(int(state.chunk[0]) + 1, chunks + 1):
        state, metrics = programs.step(state)
        rows = [
            {"chunk": done, "chunks": chunks} | {name: value[run].item() for name, value in metrics.items()}
            for run in range(len(indices))
        ]
        if done % config.validation.every == 0 or done == chunks:
            state = _validated(shared, indices, run_dirs, state, np.asarray(programs.validate(state.weights)), rows)
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
    for run, (index, folder) in enumerate(zip(indices, run_dirs, strict=True)):
        finish(folder, shared.settings[index], _state_of(state, run))


def _begun(programs: Programs, run_dirs: Sequence[Path], state_folder: Path) -> TrainState:
    """The states to go on from, the newest that were saved or fresh ones; every folder's logs end where they do."""
    state = programs.initial()
    if has_step(state_folder):
        state = restore(state_folder, state)
    state = programs.place(state)
    for folder in run_dirs:
        folder.mkdir(parents=True, exist_ok=True)
        cut_logs(folder, int(state.chunk[0]))
    return state


def _validated(
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
    for run, index in enumerate(indices):
        rows[run]["validation_jct_s"] = float(jct_s[run])
        if better[run]:
            write_policy(run_dirs[run], shared.settings[index], _state_of(state, run))
    return state


def _state_of(states: TrainState, run: int) -> TrainState:
    return jax.tree.map(lambda leaf: leaf[run], states)


def seconds_of(run_dir: Path) -> dict[str, float]:
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
