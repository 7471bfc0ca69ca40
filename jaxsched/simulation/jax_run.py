"""Runs in the JAX environment until every job has finished: the host's loop around the device program."""

import dataclasses
import threading
import time
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.cluster.build import Shape, common_shape, pad, renumber_types
from jaxsched.env.environment import initial_state
from jaxsched.env.extensions.parts import Starts
from jaxsched.env.state import EnvConfig, EnvParams, State
from jaxsched.errors import UserError
from jaxsched.options import JAX
from jaxsched.policies.policy import Policy
from jaxsched.simulation.device import bring_here
from jaxsched.simulation.engine import Progress, Report, Stopped, explain_overdue
from jaxsched.simulation.jax_program import CHUNK_STEPS, ChunkSummary, Fitting, Program, resize
from jaxsched.simulation.outcome import Outcome, RunStats, outcome
from jaxsched.simulation.settings import PlayedWorld, Settings, explain_horizon, pairs_of
from jaxsched.workload.catalogue import Catalogue, get_catalogue
from jaxsched.workload.jobs import JobList, pad_table, to_table

# Fields of a configuration that may grow without harm.
GROW = "running_slots", "queue_slots", "tenants", "largest_worker", "largest_group", "gpu_speeds"
COMPILING = "its JAX program, about 10 to 30 s (less where it was kept from an earlier run)"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What several worlds are padded to, so that one program plays them all."""

    shape: Shape
    gpu_types: tuple[str, ...]
    config: EnvConfig
    most_running: int
    rows: int  # of job tables
    models: int

    def pad(self, world: PlayedWorld) -> PlayedWorld:
        """The same world in these sizes: jobs start and finish as in the original."""
        cluster = renumber_types(pad(world.cluster, self.shape), self.gpu_types)
        models = get_catalogue(world.settings.models).models
        more = (dataclasses.replace(models[-1], name=f"none {i}", aliases=()) for i in range(self.models - len(models)))
        settings = dataclasses.replace(world.settings, models=Catalogue((*models, *more)))
        return PlayedWorld(cluster, world.job_lists, settings)


def common_sizes(worlds: Sequence[PlayedWorld]) -> Sizes | None:
    """The least sizes that hold all worlds; None if programs differ by more. UserError: see `env_config`."""
    configs = [world.config for world in worlds]
    grown = {name: max(getattr(config, name) for config in configs) for name in GROW}
    alike = {dataclasses.replace(config, **grown) for config in configs}
    if len(alike) > 1:
        return None
    return Sizes(
        shape=common_shape([world.cluster for world in worlds]),
        gpu_types=tuple(dict.fromkeys(name for world in worlds for name in world.cluster.gpu_types)),
        config=alike.pop(),
        most_running=max(world.most_running for world in worlds),
        rows=max(len(jobs) for world in worlds for jobs in world.job_lists),
        models=max(len(get_catalogue(world.settings.models).models) for world in worlds),
    )


class JaxEngine:
    """Plays what is a function of the state, with one environment per run or all seeds as a batch.

    That is all but what hand-written policies have in the event loop only, see `PolicySpec.beyond_jax`.

    Of one object all policies are prepared for the same cluster, lists and settings, or for worlds padded to the same
    `sizes`. Such as differ in their weights alone share a program.
    """

    name = JAX

    def __init__(self, sizes: Sizes | None = None) -> None:
        self._sizes = sizes
        self._programs: dict[Hashable, Program] = {}

    def why_not(self, policy: Policy, config: EnvConfig, params: EnvParams) -> str | None:
        """What of it is for the event loop only; None if nothing."""
        beyond = None if policy.spec is None else policy.spec.beyond_jax
        return None if beyond is None else f"it has {beyond}, which only the compiled event loop plays"

    def prepare(self, policy: Policy, world: PlayedWorld) -> "JaxPlayer":
        """The program and the parameters that play each of the world's lists. UserError: see `env_config`."""
        policy, sizes = dataclasses.replace(policy, weights=bring_here(policy.weights)), self._sizes
        world = world if sizes is None else sizes.pad(world)
        config, most = (world.config, world.most_running) if sizes is None else (sizes.config, sizes.most_running)
        arrays = policy.weights, world.params
        shapes = str(jax.eval_shape(lambda: arrays))
        alike = (id(policy.function), policy.asks_at, shapes)
        if alike not in self._programs:
            checks = world.settings.debug_checks
            self._programs[alike] = Program(policy, config, most, batched=world.batched, checks=checks)
        rows = max(map(len, world.job_lists)) if sizes is None else sizes.rows
        return JaxPlayer(policy, self._programs[alike], world.params, world.settings, rows)


@dataclasses.dataclass(frozen=True)
class JaxPlayer:
    """Plays job lists with one program, which is for one list at a time unless it is batched."""

    policy: Policy
    program: Program
    params: EnvParams
    settings: Settings
    size: int  # rows of every job table, so that lists of different lengths share compiled programs

    def play(
        self,
        job_lists: Sequence[JobList],
        first_seed: int = 0,
        *,
        report: Report | None = None,
        stop: threading.Event | None = None,
    ) -> list[Outcome]:
        """See `simulation.engine.Player`."""
        assert self.program.batched or len(job_lists) == 1
        run = _Run(self, job_lists, first_seed)
        why = None
        if report is not None:
            report(run.progress(None, over=False))
        summary = run.chunk()
        while True:
            over = bool(summary.done.all())
            if not over:
                why = why or explain_overdue(self.settings, run.wall_s)
            if report is not None:
                report(run.progress(summary, over=over or why is not None))
            if over or why is not None:
                return run.outcomes(why)
            if stop is not None and stop.is_set():
                raise Stopped
            before, summary = summary, run.chunk()
            if _stalled(before, summary):
                why = "for it starts no job although nothing runs"


class _Run:
    """A state that moves on in chunks, in tables of the right size."""

    def __init__(self, player: JaxPlayer, job_lists: Sequence[JobList], first_seed: int) -> None:
        self._player, self._program, self._lists, self._first_seed = player, player.program, job_lists, first_seed
        program, settings = player.program, player.settings
        states = [
            initial_state(
                program.config,
                player.params,
                pad_table(
                    to_table(jobs, settings.interval_s, sets=program.config.gpu_sets, asks=program.config.asks),
                    player.size,
                ),
                pairs_of(settings, first_seed + place),
            )
            for place, jobs in enumerate(job_lists)
        ]
        keys = [jax.random.fold_in(jax.random.key(settings.seed), first_seed + i) for i in range(len(job_lists))]
        batched = program.batched
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states) if batched else states[0]
        self._state: State = jax.tree.map(jnp.copy, state)  # donated, and some of its leaves are the cluster's
        self._key = jnp.stack(keys) if batched else keys[0]
        self._fitting = Fitting(program.smallest, program.most_running)
        self._steps = 0
        self._logs: list[list[dict[str, np.ndarray]]] = [[] for _ in job_lists]  # of starts, per list and chunk
        self._compile_s, self._begin = 0.0, time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds since the start without those of compiling (or of waiting for another thread that compiles)."""
        return time.perf_counter() - self._begin - self._compile_s

    def chunk(self) -> ChunkSummary:
        """Runs one chunk, and fits the tables for the next. Returns its summary, NumPy leaves."""
        key, step, weights = self._key, jnp.int32(self._steps), self._player.policy.weights
        begin = time.perf_counter()
        chunk = self._program.chunk(self._fitting.sizes, self._state, self._player.params, key, step, weights)
        self._compile_s += time.perf_counter() - begin
        result: Any = chunk.run(self._state, self._player.params, key, step, weights)
        if self._program.checks:
            error, result = result
            if (found := error.get()) is not None:
                said = found.splitlines()[0].removesuffix(" (`check` failed)")
                first = f"environments count from seed {self._first_seed}"
                raise UserError(f"debug check of {self._player.policy.name!r}: {said} ({first})")
        self._state, summary = result
        summary: ChunkSummary = jax.tree.map(np.asarray, summary)
        self._steps += int(summary.steps.max())
        if self._state.starts.there:
            self._read_starts(self._state.starts)
        resized = self._fitting.note(
            int(summary.peak_running.max()),
            int(summary.peak_queue.max()),
            running_full=bool(summary.running_full.any()),
            queue_full=bool(summary.queue_full.any()),
        )
        if resized:
            self._state = resize(self._state, self._fitting.sizes)
        return summary

    def _read_starts(self, starts: Starts) -> None:
        """Take the starts of a chunk from its log."""
        columns = {field.name: np.asarray(getattr(starts, field.name)) for field in dataclasses.fields(starts)}
        kept = {name: leaf for name, leaf in columns.items() if leaf.size and name != "count"}
        for i, log in enumerate(self._logs):
            own = {name: leaf[i] if self._program.batched else leaf for name, leaf in kept.items()}
            until = int(columns["count"][i] if self._program.batched else columns["count"])
            log.append({name: leaf[:until].copy() for name, leaf in own.items()})

    def progress(self, summary: ChunkSummary | None, *, over: bool) -> Progress:
        """How far the run is; `summary` None: it has not begun."""
        total = sum(map(len, self._lists))
        progress = Progress(
            policy=self._player.policy.name,
            seed=self._first_seed,
            finished=0,
            arrived=0,
            total=total,
            simulated_s=0.0,
            wall_s=0.0,
            steps=self._steps,
            over=over,
            compiling="" if self._program.chunks else COMPILING,
        )
        if summary is None:
            return progress
        return dataclasses.replace(
            progress,
            finished=int(summary.finished.sum() + summary.rejected.sum()),
            arrived=min(int(summary.arrived.sum()), total),
            simulated_s=float(summary.clock.max()) * self._player.settings.interval_s,
            wall_s=self.wall_s,
        )

    def outcomes(self, why: str | None) -> list[Outcome]:
        """One outcome per list; `why` the run was cut off, None if it was not or by the horizon."""
        settings, stats = self._player.settings, self._stats()
        kept = self._state.replace(running=None)  # large, and of no use any more
        if not self._program.batched:
            kept = jax.tree.map(lambda leaf: leaf[None], kept)
        kept = jax.tree.map(np.asarray, kept)
        why = why or explain_horizon(self._player.params, settings)

        def outcome_of(index: int, jobs: JobList) -> Outcome:
            own = jax.tree.map(lambda leaf: leaf[index], kept)
            chunks = self._logs[index]
            log = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]} if chunks else None
            result = outcome(self._player.policy.name, jobs, own, settings, stats, log)
            return dataclasses.replace(result, cut_off=why if result.unfinished else None)

        return [outcome_of(index, jobs) for index, jobs in enumerate(self._lists)]

    def _stats(self) -> RunStats:
        """So far; what differs between the lists of a batch is 0."""
        return RunStats(
            wall_s=self.wall_s,
            compile_s=self._compile_s,
            steps=self._steps,
            simulated_s=0.0,
            running_slots=self._fitting.largest.running,
            queue_slots=self._fitting.largest.queue,
            peak_running=self._fitting.peak.running,
            peak_queue=self._fitting.peak.queue,
            illegal=0,
            engine=JAX,
        )


def _stalled(before: ChunkSummary, now: ChunkSummary) -> bool:
    """Over a whole chunk nothing ran and nothing started or arrived in any run, and some job waits all the same.

    Where servers are still to come back, that may be what it waits for. Where none waits the run is on its way to the
    next arrival, which may be millions of intervals ahead.
    """
    waiting = now.arrived - now.rejected > now.started
    idle = (now.running == 0) & (before.running == 0) & (now.steps >= CHUNK_STEPS) & waiting
    idle &= ~now.changing
    same = (now.started == before.started) & (now.arrived == before.arrived)
    return bool((now.done | (idle & same)).all() & ~now.done.all())
