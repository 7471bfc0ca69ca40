"""The training loop: compiled chunks inside, logging, validation and checkpoints between them."""

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float32, Int32, PRNGKeyArray, PyTree, Shaped

from jaxsched.env.observation import observe
from jaxsched.env.state import State
from jaxsched.errors import UserError
from jaxsched.files import write_text
from jaxsched.machine import loop_options
from jaxsched.policies.checkpoint import add_to_card, save_policy
from jaxsched.policies.menu import build_menu
from jaxsched.training import rollout
from jaxsched.training.card import limits
from jaxsched.training.config import PPOConfig, TrainConfig, to_dict
from jaxsched.training.json_lines import append, read_rows, truncate
from jaxsched.training.ppo import Batch, Losses, optimizer, select, update
from jaxsched.training.setting import Setting, make_setting
from jaxsched.training.shards import mean_over_shards, own_key, per_shard, place, sum_over_shards
from jaxsched.training.state import TrainState, has_step, restore, save, saved_config
from jaxsched.training.validation import validation_jct_s
from jaxsched.training.worlds import Draw, Worlds, draw_worlds

STATE_FOLDER, POLICY_FOLDER = "state", "policy"
METRICS_FILE, TIMING_FILE, COMMAND_FILE = "metrics.jsonl", "timing.jsonl", "command.txt"
Report = Callable[[dict[str, float]], None]
Environments = tuple[State, Draw]
Metrics = dict[str, Shaped[Array, ""]]


class Programs(NamedTuple):
    """The compiled pieces of a run. `step` donates its argument."""

    initial: Callable[[], TrainState]
    step: Callable[[TrainState], tuple[TrainState, Metrics]]
    validate: Callable[[PyTree], Float32[Array, ""]]  # seconds, of weights


def programs_of(setting: Setting) -> Programs:
    """The programs of one run; they compile when they are first called."""
    jit = functools.partial(jax.jit, compiler_options=loop_options())
    return Programs(
        initial=jax.jit(lambda: initial(setting)),
        step=jit(lambda state: chunk(setting, state), donate_argnums=0),
        validate=jit(lambda weights: validation_jct_s(setting, weights)),
    )


def initial(setting: Setting) -> TrainState:
    """Fresh weights and environments from the config's seed. Pure: the same config gives the same state."""
    config, params, network = setting.config, setting.worlds.params, setting.network
    weight_key, world_key, run_key = jax.random.split(jax.random.key(config.seed), 3)
    states, draws = draw_worlds(world_key, setting.worlds, config.ppo.num_envs)
    one = jax.tree.map(lambda leaf: leaf[0], states)
    obs = observe(config.queue, params, one)
    weights = network.init(weight_key, obs, build_menu(params, one, obs))
    return TrainState(
        weights=weights,
        optimizer=optimizer(config.ppo).init(weights),
        best_weights=weights,
        best_jct_s=jnp.float32(jnp.inf),
        worlds=states,
        draws=draws,
        return_scale=jnp.float32(0.0),
        key_data=jax.random.key_data(run_key),
        chunk=jnp.int32(0),
    )


def _restart(
    key: PRNGKeyArray, ppo: PPOConfig, worlds: Worlds, done: Int32[Array, ""], environments: Environments
) -> Environments:
    """Replace the next share of a shard's environments, in turn, by fresh ones; `done` are the chunks so far."""
    size = ppo.num_envs // ppo.shards
    count = int(size * ppo.restart_share)
    if count == 0:
        return environments
    index = (done * count + jnp.arange(count)) % size
    put = lambda old, new: old.at[index].set(new)
    return jax.tree.map(put, environments, draw_worlds(key, worlds, count))


def chunk(setting: Setting, state: TrainState) -> tuple[TrainState, Metrics]:
    """One chunk: collect, estimate, update, restart some environments. Pure; to be jitted with `state` donated."""
    learn = per_shard(functools.partial(_chunk, setting), setting.config.ppo.shards)
    (state, metrics), environments = learn(*_split(state))
    return _joined(state, environments), metrics


def _split(state: TrainState) -> tuple[TrainState, Environments]:
    """What all shards have in common, and the environments that they share out."""
    return state.replace(worlds=None, draws=None), (state.worlds, state.draws)


def placed(state: TrainState, shards: int) -> TrainState:
    """The state on the devices where `chunk` leaves it."""
    return _joined(*place(*_split(state), shards))


def _joined(state: TrainState, environments: Environments) -> TrainState:
    worlds, draws = environments
    return state.replace(worlds=worlds, draws=draws)


def _chunk(
    setting: Setting, state: TrainState, environments: Environments
) -> tuple[tuple[TrainState, Metrics], Environments]:
    """`chunk` of one shard, in and out of which come the environments apart."""
    ppo, (worlds, draws) = setting.config.ppo, environments
    key, *keys = jax.random.split(jax.random.wrap_key_data(state.key_data), 5)
    play, pick, learn, again = (own_key(one, ppo.shards) for one in keys)
    worlds, experience, bootstrap, counts = rollout.collect(play, setting, state.weights, draws, worlds)
    batch, scale = _estimated(pick, ppo, state.return_scale, experience, bootstrap)
    learn_policy = (state.chunk >= ppo.critic_only_chunks).astype(jnp.float32)
    weights, opt_state, losses = update(
        learn, setting.network, ppo, state.weights, state.optimizer, batch, learn_policy
    )
    metrics = _metrics(experience, counts, losses, scale, ppo.shards)
    after = state.replace(
        weights=weights, optimizer=opt_state, return_scale=scale, key_data=jax.random.key_data(key),
        chunk=state.chunk + 1,
    )  # fmt: skip
    return (after, metrics), _restart(again, ppo, setting.worlds, after.chunk, (worlds, draws))


def _estimated(
    key: PRNGKeyArray,
    ppo: PPOConfig,
    return_scale: Float32[Array, ""],
    experience: rollout.Experience,
    bootstrap: Float32[Array, "E P"],
) -> tuple[Batch, Float32[Array, ""]]:
    """What to learn from, and the return scale from here on: a running spread of the returns, 0 at first."""
    mean = functools.partial(mean_over_shards, shards=ppo.shards)
    first = return_scale == 0
    scale = jnp.where(first, 1.0, return_scale)
    advantage, returns = rollout.advantages(experience, bootstrap, scale, ppo.gae_lambda)
    variance = mean(((returns - mean(returns.mean())) ** 2).mean())
    spread = jnp.maximum(jnp.sqrt(variance), 1e-3)
    new_scale = jnp.where(first, spread, 0.95 * return_scale + 0.05 * spread)
    return select(key, ppo, experience, advantage, returns, new_scale), new_scale


def _metrics(
    experience: rollout.Experience,
    counts: rollout.Counts,
    losses: Losses,
    return_scale: Float32[Array, ""],
    shards: int,
) -> Metrics:
    """The chunk's row of the log, over all shards."""
    mean, counts = functools.partial(mean_over_shards, shards=shards), sum_over_shards(counts, shards)
    return {
        "reward": mean(experience.reward.mean()),
        "decisions": counts.decisions,
        "placements": counts.placements,
        "forwards": counts.forwards,
        "intervals": counts.intervals,
        "jobs_in_system": counts.jobs / counts.rounds.astype(jnp.float32),
        "illegal": counts.illegal,
        "return_scale": return_scale,
        **{f"loss_{name}": value for name, value in vars(mean(losses)).items()},
    }


def train(
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    report: Report | None = None,
    save_every: int = 10,
    programs: Programs | None = None,
    command: str = "",
) -> Path:
    """Train to the end of the config's chunks and return the folder of the best policy by validation (see `finish`).

    `run_dir` gets `state/` (Orbax, at the start and every `save_every` chunks), `policy/` (the best policy so far),
    `metrics.jsonl` (the same for every run of a config on the same device type and versions, killed and resumed or not)
    and `timing.jsonl`. `report` is called with one row per chunk; `programs` replace the run's own, and must compute
    the same; `command`, which started the run, gets into the card. Raises UserError if there is nothing to resume, or a
    run in the way.
    """
    if not resume and has_step(run_dir / STATE_FOLDER):
        raise UserError(f"run {run_dir}: already holds a run; resume it with --resume, or choose another folder")
    setting = make_setting(config)
    programs = programs or programs_of(setting)
    state = _begun(config, run_dir, programs, resume, command)
    chunks = config.ppo.chunks
    wall, cpu = time.perf_counter(), time.process_time()
    for done in range(int(state.chunk) + 1, chunks + 1):
        state, metrics = programs.step(state)
        row = {"chunk": done, "chunks": chunks} | {name: value.item() for name, value in metrics.items()}
        if done % config.validation.every == 0 or done == chunks:
            row["validation_jct_s"] = float(programs.validate(state.weights))
            state = _best_of(run_dir, setting, state, row["validation_jct_s"])
        append(run_dir / METRICS_FILE, row)
        timing = {"chunk": done, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        append(run_dir / TIMING_FILE, timing)
        if done % save_every == 0 or done == chunks:
            save(run_dir / STATE_FOLDER, state, config)
        if report:
            report(row | timing)
    finish(run_dir, setting, state)
    return run_dir / POLICY_FOLDER


def _begun(config: TrainConfig, run_dir: Path, programs: Programs, resume: bool, command: str) -> TrainState:
    """The state to go on from, the newest of the folder or a fresh one; the folder's logs end where it does."""
    state = programs.initial()
    run_dir.mkdir(parents=True, exist_ok=True)
    if resume:
        state = restore(run_dir / STATE_FOLDER, state)
    else:
        save(run_dir / STATE_FOLDER, state, config)
        write_text(run_dir / COMMAND_FILE, command)
    cut_logs(run_dir, int(state.chunk))
    return placed(state, config.ppo.shards)


def cut_logs(run_dir: Path, chunks: int) -> None:
    """Keep the rows of the first chunks; later ones will be written again."""
    for name in (METRICS_FILE, TIMING_FILE):
        truncate(run_dir / name, chunks)


def _best_of(run_dir: Path, setting: Setting, state: TrainState, jct_s: float) -> TrainState:
    """The state with its weights as the best ones, and their policy written, if `jct_s` is the least so far."""
    if jct_s < float(state.best_jct_s):
        state = state.replace(best_weights=jax.tree.map(jnp.copy, state.weights), best_jct_s=jnp.float32(jct_s))
        write_policy(run_dir, setting, state)
    return state


def train_or_resume(config: TrainConfig, run_dir: Path, *, command: str = "", report: Report | None = None) -> Path:
    """`train`, going on with what `run_dir` holds. UserError if that is a run of another config."""
    found = has_step(run_dir / STATE_FOLDER)
    if found and saved_config(run_dir / STATE_FOLDER) != config:
        raise UserError(
            f"{run_dir}: holds a run of another configuration; delete it, or choose another folder with --out"
        )
    return train(config, run_dir, resume=found, command=command, report=report)


def write_policy(run_dir: Path, setting: Setting, state: TrainState) -> None:
    """The policy of `state.best_weights` and its card, into the run's folder."""
    config, params = setting.config, setting.worlds.params
    racks = params.cluster.rack_id.shape[1]
    card = {
        "config": to_dict(config),
        "chunk": int(state.chunk),
        "validation_jct_s": float(state.best_jct_s) if math.isfinite(state.best_jct_s) else None,
        "device": jax.devices()[0].device_kind,
        "limits": limits(config.env, config.workload, any_size=config.network.kind != "flat"),
    }
    save_policy(
        run_dir / POLICY_FOLDER,
        setting.network,
        state.best_weights,
        config.queue,
        card,
        max_forwards=config.env.max_forwards,
        sizes=(*params.cluster.shape, racks),
    )


def finish(run_dir: Path, setting: Setting, state: TrainState) -> None:
    """Puts into the policy's card what is known at the run's end: its curve and the command that started it.

    If no validation run came to its end, the last weights are the policy, and its card has no validation JCT.
    """
    if not (run_dir / POLICY_FOLDER).is_dir():
        write_policy(run_dir, setting, state.replace(best_weights=state.weights))
    rows = read_rows(run_dir / METRICS_FILE)
    jct = lambda row: row["validation_jct_s"] if math.isfinite(row["validation_jct_s"]) else None
    curve = [[row["chunk"], jct(row)] for row in rows if "validation_jct_s" in row]
    path = run_dir / COMMAND_FILE
    command = path.read_text() if path.exists() else ""
    add_to_card(run_dir / POLICY_FOLDER, curve=curve, commands={"train": command} if command else {})


def bench_chunk(config: TrainConfig, repeats: int = 3) -> dict[str, float]:
    """Speed of training, compilation apart: decisions per second, wall and CPU seconds of `repeats` chunks.

    A decision is a choice that a scheduler really had (some placement or forward was legal).
    """
    setting = make_setting(config)
    state = placed(jax.jit(lambda: initial(setting))(), config.ppo.shards)
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
