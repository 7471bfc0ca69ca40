"""Run a policy over job lists until every job has finished: the host's loop around the device program."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxsched.calibration.interference.named import interference_model, sharing_law
from jaxsched.cluster.hardware import Cluster
from jaxsched.env.environment import initial_state
from jaxsched.env.state import EnvParams, State, make_params
from jaxsched.evaluation.contenders import Contender
from jaxsched.simulation.engines.jax.program import CHUNK_STEPS, Program, Pulse
from jaxsched.simulation.engines.jax.slots import Fitting, resize
from jaxsched.simulation.outcome import Outcome, RunStats, outcome
from jaxsched.simulation.settings import JAX, Settings, env_config, most_running
from jaxsched.workload.jobs import JobList, pad_table, to_table


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far one run is; of a run with lanes, summed over them."""

    policy: str
    seed: int  # position of the (first) job list
    finished: int  # jobs, rejected ones included
    arrived: int  # jobs
    total: int  # jobs
    simulated_s: float
    wall_s: float
    steps: int
    over: bool  # the run has ended


Report = Callable[[Progress], None]


class Stopped(Exception):
    """The run was told to stop."""


def prepare(
    one: Contender, cluster: Cluster, job_lists: Sequence[JobList], settings: Settings, *, lanes: bool
) -> tuple[Program, EnvParams]:
    """The program and the parameters that run `one` on each of `job_lists`. UserError: see `env_config`."""
    config = env_config(cluster, job_lists, settings)
    _, weights = interference_model(settings.interference)
    params = make_params(
        cluster,
        interval_s=settings.interval_s,
        horizon=settings.horizon,
        interference=weights,
        sharing=sharing_law(settings.interference) if config.shared_gpus else None,
    )
    return Program(one, config, most_running(cluster, job_lists), lanes=lanes), params


def rollout(
    program: Program,
    params: EnvParams,
    job_lists: Sequence[JobList],
    settings: Settings,
    *,
    size: int | None = None,
    first_seed: int = 0,
    report: Report | None = None,
    stop: threading.Event | None = None,
) -> list[Outcome]:
    """One outcome per job list, all run as lanes of `program` (a program without lanes takes one list).

    `size` pads the job tables, so that lists of different lengths share a compiled program; `first_seed` is the
    position of the first list among the seeds. Raises `Stopped` once `stop` is set.
    """
    assert program.lanes or len(job_lists) == 1
    size = max(len(jobs) for jobs in job_lists) if size is None else size
    states = [
        initial_state(program.config, params, pad_table(to_table(jobs, settings.interval_s), size))
        for jobs in job_lists
    ]
    keys = [jax.random.fold_in(jax.random.key(settings.seed), first_seed + lane) for lane in range(len(job_lists))]
    run = _Run(program, params, states, keys)
    why, total = None, sum(len(jobs) for jobs in job_lists)
    if report is not None:
        report(Progress(program.contender.name, first_seed, 0, 0, total, 0.0, 0.0, 0, over=False))
    pulse = run.chunk()
    while True:
        over = bool(pulse.done.all())
        if not over:
            why = why or overdue(settings, run.wall_s)
        if report is not None:
            report(_progress(run, pulse, settings.interval_s, first_seed, total, over or why is not None))
        if over or why is not None:
            break
        if stop is not None and stop.is_set():
            raise Stopped
        before, pulse = pulse, run.chunk()
        if _stalled(before, pulse):
            why = "for it starts no job although nothing runs"
    return _outcomes(run, job_lists, settings, why)


def overdue(settings: Settings, wall_s: float) -> str | None:
    """Why a run ends that has taken so long, None if it may go on."""
    late = settings.wall_limit_s is not None and wall_s > settings.wall_limit_s
    return f"after {wall_s:,.0f} s on the wall" if late else None


class _Run:
    """A state that moves on in chunks, in tables of the right size."""

    def __init__(self, program: Program, params: EnvParams, states: list[State], keys: list[jax.Array]) -> None:
        lanes = program.lanes
        self.program, self._params = program, params
        state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states) if lanes else states[0]
        self.state = jax.tree.map(jnp.copy, state)  # donated, and some of its leaves are the cluster's
        self._key = jnp.stack(keys) if lanes else keys[0]
        self._fold = jax.vmap(jax.random.fold_in, (0, None)) if lanes else jax.random.fold_in
        self._fitting = Fitting(program.smallest, program.most_running)
        self.steps, self._chunks = 0, 0
        self._compile_s, self._begin = 0.0, time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds since the start without those of compiling (or of waiting for another thread that compiles)."""
        return time.perf_counter() - self._begin - self._compile_s

    def chunk(self) -> Pulse:
        """Runs one chunk, and fits the tables for the next. Returns its pulse, NumPy leaves."""
        key = self._fold(self._key, self._chunks)
        begin = time.perf_counter()
        chunk = self.program.chunk(self._fitting.sizes, self.state, self._params, key)
        self._compile_s += time.perf_counter() - begin
        self.state, pulse = chunk.run(self.state, self._params, key, self.program.contender.weights)
        pulse: Pulse = jax.tree.map(np.asarray, pulse)
        self.steps, self._chunks = self.steps + int(pulse.steps.max()), self._chunks + 1
        resized = self._fitting.note(
            int(pulse.peak_running.max()),
            int(pulse.peak_queue.max()),
            running_full=bool(pulse.running_full.any()),
            queue_full=bool(pulse.queue_full.any()),
        )
        if resized:
            self.state = resize(self.state, self._fitting.sizes)
        return pulse

    def stats(self) -> RunStats:
        """So far; what differs between lanes is 0."""
        return RunStats(
            wall_s=self.wall_s,
            compile_s=self._compile_s,
            steps=self.steps,
            simulated_s=0.0,
            running_slots=self._fitting.largest.running,
            queue_slots=self._fitting.largest.queue,
            peak_running=self._fitting.peak.running,
            peak_queue=self._fitting.peak.queue,
            illegal=0,
            engine=JAX,
        )


def _outcomes(run: _Run, job_lists: Sequence[JobList], settings: Settings, why: str | None) -> list[Outcome]:
    """One outcome per list; `why` the run was cut off, None if it was not or by the horizon."""
    stats = run.stats()
    kept = run.state.replace(running=None)  # large, and of no use any more
    kept = jax.tree.map(np.asarray, kept if run.program.lanes else jax.tree.map(lambda leaf: leaf[None], kept))
    why = why or settings.at_horizon

    def one(lane: int, jobs: JobList) -> Outcome:
        own = jax.tree.map(lambda leaf: leaf[lane], kept)
        result = outcome(run.program.contender.name, jobs, own, settings, stats)
        return dataclasses.replace(result, cut_off=why if result.unfinished else None)

    return [one(lane, jobs) for lane, jobs in enumerate(job_lists)]


def _stalled(before: Pulse, now: Pulse) -> bool:
    """Over a whole chunk nothing ran and nothing started or arrived in any lane, and some lane is not done."""
    idle = (now.running == 0) & (before.running == 0) & (now.steps >= CHUNK_STEPS)
    still = (now.started == before.started) & (now.arrived == before.arrived)
    return bool((now.done | (idle & still)).all() & ~now.done.all())


def _progress(run: _Run, pulse: Pulse, interval_s: float, seed: int, total: int, over: bool) -> Progress:
    return Progress(
        policy=run.program.contender.name,
        seed=seed,
        finished=int(pulse.finished.sum() + pulse.rejected.sum()),
        arrived=min(int(pulse.arrived.sum()), total),
        total=total,
        simulated_s=float(pulse.clock.max()) * interval_s,
        wall_s=run.wall_s,
        steps=run.steps,
        over=over,
    )
