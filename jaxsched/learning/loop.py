"""The training loop: compiled chunks inside, logging, validation and checkpoints between them."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float32, PyTree

from jaxsched import shipped
from jaxsched.errors import UserError
from jaxsched.io.cards import named_files
from jaxsched.io.files import write_text
from jaxsched.io.json_file import append, read_rows, truncate
from jaxsched.learning.chunk import Metrics, chunk, initial, place_state, validate
from jaxsched.learning.config import TrainConfig, describe_limits, to_dict
from jaxsched.learning.devices import is_first, lock_by_first, wait_for_all
from jaxsched.learning.rollout import stop_at_fault
from jaxsched.learning.setting import Setting, is_same_run, make_setting, settle_path
from jaxsched.learning.state import TrainState, has_step, read_saved_config, require_step, restore, save
from jaxsched.learning.untrained import UNTRAINED_FOLDER, curve_of, has_untrained
from jaxsched.machine import loop_options
from jaxsched.policies.checkpoint import add_to_card, check_card, read_card, save_policy

STATE_FOLDER, POLICY_FOLDER = "state", "policy"
METRICS_FILE, TIMING_FILE, COMMAND_FILE = "metrics.jsonl", "timing.jsonl", "command.txt"
Report = Callable[[dict[str, float]], None]


class Programs(NamedTuple):
    """The compiled pieces of a run. `step` donates its argument."""

    initial: Callable[[], TrainState]
    step: Callable[[TrainState], tuple[TrainState, Metrics]]
    validate: Callable[[PyTree], Float32[Array, ""]]  # seconds, of weights
    place: Callable[[TrainState], TrainState] = lambda state: state  # onto the devices where `step` leaves it


def programs_of(setting: Setting) -> Programs:
    """The programs of one run; they compile when they are first called."""
    jit = functools.partial(jax.jit, compiler_options=loop_options())
    return Programs(
        initial=jax.jit(lambda: initial(setting)),
        step=jit(lambda state: chunk(setting, state), donate_argnums=0),
        validate=jit(lambda weights: validate(setting, weights)),
        place=lambda state: place_state(state, setting.ppo.shards),
    )


def train(
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    report: Report | None = None,
    save_every: int = 10,
    programs: Programs | None = None,
    command: str = "",
    begin: Callable[[], None] | None = None,
    debug_checks: bool = False,
) -> Path:
    """Train to the end of the config's chunks and return the folder of the best policy by validation (see `finish`).

    `run_dir` gets `state/` (Orbax, at the start and every `save_every` chunks), `untrained/` (the policy of the first
    weights), `policy/` (the best one since then), `metrics.jsonl` (the same for every run of a config on the same
    device type and versions, killed and resumed or not) and `timing.jsonl`. `report` is called with one row per chunk;
    `programs` replace the run's own, and must compute the same; `command`, which started the run, gets into the card;
    `begin` is called when the config has been found right, before anything is compiled; `debug_checks` end the run at
    the first number that is not finite, and the first GPU or job that is lost. Raises UserError if there is nothing to
    resume, a run in the way, or another process at work in the folder.

    Several processes (`learning.devices`) call it alike; the first writes all but its steps.
    """
    if resume:
        require_step(run_dir / STATE_FOLDER)
    elif has_step(run_dir / STATE_FOLDER):
        raise UserError(f"run {run_dir}: already holds a run; resume it with --resume, or choose another folder")
    elif lost := next((name for name in (POLICY_FOLDER, COMMAND_FILE) if (run_dir / name).exists()), None):
        raise UserError(f"run {run_dir}: holds {lost} of a run whose {STATE_FOLDER} is gone; choose another folder")
    config = settle_path(config)
    files = named_files(to_dict(config))  # before any is read: one may be edited while the run goes on
    setting = make_setting(config, debug_checks)
    wait_for_all("looked")  # before another process puts a run there
    with lock_by_first(run_dir), _explain_system_errors(run_dir):
        if begin is not None:
            begin()
        programs = programs or programs_of(setting)
        state = _begin(config, setting, run_dir, programs, resume, command, files)
        _train(config, setting, run_dir, state, programs, report, save_every, files)
    return run_dir / POLICY_FOLDER


def _train(
    config: TrainConfig,
    setting: Setting,
    run_dir: Path,
    state: TrainState,
    programs: Programs,
    report: Report | None,
    save_every: int,
    files: Mapping[str, str],
) -> None:
    """Chunks from `state` on, to the last one."""
    chunks = config.ppo.chunks
    wall, cpu = time.perf_counter(), time.process_time()
    for done in range(int(state.chunk) + 1, chunks + 1):
        state, metrics = programs.step(state)
        if setting.checks:
            stop_at_fault(done, np.asarray(metrics.pop("fault")), state.weights)
        row = {"chunk": done, "chunks": chunks} | {name: value.item() for name, value in metrics.items()}
        if done % config.validation.every == 0 or done == chunks:
            row["validation_jct_s"] = float(programs.validate(state.weights))
            state = programs.place(_keep_best(run_dir, config, setting, state, row["validation_jct_s"], files))
        timing = {"chunk": done, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        if is_first():
            append(run_dir / METRICS_FILE, row)
            append(run_dir / TIMING_FILE, timing)
        if done % save_every == 0 or done == chunks:
            save(run_dir / STATE_FOLDER, state, config, files=files)
        if report:
            report(row | timing)
    if is_first():
        finish(run_dir, config, setting, state, files)


@contextmanager
def _explain_system_errors(run_dir: Path) -> Iterator[None]:
    """What the system refuses while a run goes on, a full disk for instance, is one line; the run can be resumed."""
    try:
        yield
    except OSError as error:
        what = error.strerror or " ".join(str(error).split())
        how = "go on with --resume" if has_step(run_dir / STATE_FOLDER) else "start again"
        raise UserError(f"run {run_dir}: {what}; when that is mended, {how}") from error


def _begin(
    config: TrainConfig,
    setting: Setting,
    run_dir: Path,
    programs: Programs,
    resume: bool,
    command: str,
    files: Mapping[str, str],
) -> TrainState:
    """The state to go on from, the newest of the folder or a fresh one; the folder's logs end where it does."""
    state = programs.initial()
    run_dir.mkdir(parents=True, exist_ok=True)
    if not (resume and has_untrained(run_dir)):  # one of a run that ended before its first step may be there
        first = programs.place(state)
        jct_s = programs.validate(first.weights)
        if is_first():
            write_policy(run_dir, config, setting, first.replace(best_jct_s=jct_s), UNTRAINED_FOLDER, files)
    if resume:
        state = restore(run_dir / STATE_FOLDER, state)
    state = programs.place(state)
    if not resume:
        save(run_dir / STATE_FOLDER, state, config, files=files)
    if is_first():
        if not resume:
            write_text(run_dir / COMMAND_FILE, command)
        cut_logs(run_dir, int(state.chunk))
    return state


def cut_logs(run_dir: Path, chunks: int) -> None:
    """Keep the rows of the first chunks; later ones will be written again."""
    for name in (METRICS_FILE, TIMING_FILE):
        truncate(run_dir / name, chunks)


def _keep_best(
    run_dir: Path, config: TrainConfig, setting: Setting, state: TrainState, jct_s: float, files: Mapping[str, str]
) -> TrainState:
    """The state with its weights as the best ones, and their policy written, if `jct_s` is the least so far."""
    if jct_s < float(state.best_jct_s):
        state = state.replace(best_weights=jax.tree.map(jnp.copy, state.weights), best_jct_s=jnp.float32(jct_s))
        if is_first():
            write_policy(run_dir, config, setting, state, files=files)
    return state


def train_or_resume(
    config: TrainConfig,
    run_dir: Path,
    *,
    command: str = "",
    report: Report | None = None,
    begin: Callable[[], None] | None = None,
) -> Path:
    """`train`, going on with what `run_dir` holds. UserError if that is a run of another config."""
    found = has_step(run_dir / STATE_FOLDER)
    if found and not is_same_run(read_saved_config(run_dir / STATE_FOLDER), config):
        raise UserError(
            f"{run_dir}: holds a run of another configuration; delete it, or choose another folder with --out"
        )
    return train(config, run_dir, resume=found, command=command, report=report, begin=begin)


def write_policy(
    run_dir: Path,
    config: TrainConfig,
    setting: Setting,
    state: TrainState,
    name: str = POLICY_FOLDER,
    files: Mapping[str, str] | None = None,
) -> None:
    """The policy of `state.best_weights` and its card, into the folder `name` of the run's.

    `files`: those that the run began with (`io.cards.named_files`); None: as they are now.
    """
    params = setting.worlds.params
    racks = params.cluster.rack_id.shape[1]
    card = {
        "config": to_dict(config),
        "files": named_files(to_dict(config)) if files is None else dict(files),
        "chunk": int(state.chunk),
        "validation_jct_s": float(state.best_jct_s) if math.isfinite(state.best_jct_s) else None,
        "device": jax.devices()[0].device_kind,
        "limits": describe_limits(config),
    }
    save_policy(
        run_dir / name,
        setting.network,
        state.best_weights,
        setting.queue,
        card,
        max_forwards=config.env.max_forwards,
        sizes=(*params.cluster.shape, racks),
    )


def compare_with_start(config: TrainConfig) -> Iterator[str]:
    """Why a run's untrained policy decides otherwise than the checkpoint whose weights it has, in a line or none."""
    if not config.start.checkpoint:
        return
    folder = shipped.resolve(shipped.CHECKPOINTS, config.start.checkpoint)
    _, its, forwards, _ = check_card(str(folder), read_card(folder))
    was, now = dataclasses.asdict(its), dataclasses.asdict(config.queue) | {"max_forwards": config.env.max_forwards}
    was["max_forwards"] = now["max_forwards"] if forwards is None else forwards
    if other := [f"{name} {now[name]}, not {was[name]}" for name in was if was[name] != now[name]]:
        yield f"untrained/ has the weights of {folder}, but decides by {', '.join(other)}"


def finish(
    run_dir: Path, config: TrainConfig, setting: Setting, state: TrainState, files: Mapping[str, str] | None = None
) -> None:
    """Puts into the policy's card what is known at the run's end: its curve and the command that started it.

    If no validation run came to its end, the last weights are the policy, and its card has no validation JCT.
    """
    if not (run_dir / POLICY_FOLDER).is_dir():
        write_policy(run_dir, config, setting, state.replace(best_weights=state.weights), files=files)
    curve = curve_of(run_dir, read_rows(run_dir / METRICS_FILE))
    path = run_dir / COMMAND_FILE
    command = path.read_text() if path.exists() else ""
    add_to_card(run_dir / POLICY_FOLDER, curve=curve, commands={"train": command} if command else {})


def bench_chunk(config: TrainConfig, repeats: int = 3) -> dict[str, float]:
    """Speed of training, compilation apart: decisions per second, wall and CPU seconds of `repeats` chunks.

    A decision is a choice that a scheduler really had (some placement or forward was legal).
    """
    setting = make_setting(config)
    state = place_state(jax.jit(lambda: initial(setting))(), config.ppo.shards)
    started = time.perf_counter()
    step = jax.jit(lambda state: chunk(setting, state), donate_argnums=0).lower(state).compile(loop_options())
    compiled = time.perf_counter()
    state, _ = jax.block_until_ready(step(state))
    wall, cpu, decisions, rounds = time.perf_counter(), time.process_time(), 0, 0
    for _ in range(repeats):
        state, metrics = jax.block_until_ready(step(state))
        decisions += int(metrics["decisions"])
        rounds += config.ppo.num_envs * config.ppo.steps
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "num_envs": config.ppo.num_envs,
        "decisions_per_s": decisions / wall,
        "rounds_per_s": rounds / wall,
        "wall_s": wall,
        "cpu_s": cpu,
        "compile_s": compiled - started,
    }
