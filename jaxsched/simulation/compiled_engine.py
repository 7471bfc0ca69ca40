"""Runs of hand-written policies by the compiled event loop, where that has all they need."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Sequence

import numpy as np

from jaxsched.env.state import FINISHED, RUNNING, WAITING, EnvConfig, EnvParams
from jaxsched.event_loop import Run, SearchedRun, describe_compiling, why_not, why_not_whole_run
from jaxsched.options import COMPILED
from jaxsched.policies.policy import Policy
from jaxsched.simulation.engine import Progress, Report, Stopped, explain_overdue
from jaxsched.simulation.outcome import NOT_ARRIVED, REJECTED, Outcome, RunStats, add_interruptions
from jaxsched.simulation.settings import PlayedWorld, Settings, explain_horizon, most_running, pairs_of
from jaxsched.workload.jobs import JobList, to_table

CHUNK_S = 0.2  # of a run at a time, about
FEWEST_ROUNDS = 64
FEW_JOBS = 2000  # longer lists are not tried in Python


@dataclasses.dataclass(frozen=True)
class CompiledEngine:
    """Plays hand-written policies, one job list after the other."""

    plain: bool = False  # in Python, which needs no Numba
    simple: bool = False  # all policies that are played are, see `event_loop.is_simple`
    name = COMPILED

    def why_not(self, policy: Policy, config: EnvConfig, params: EnvParams) -> str | None:
        """What it lacks, Numba included."""
        if self.plain:
            return why_not(policy, config, params, compiled=False)
        return why_not_whole_run(policy, config, params)

    def prepare(self, policy: Policy, world: PlayedWorld) -> "CompiledPlayer":
        """A player; nothing is compiled before the first run. UserError: see `env_config`."""
        return CompiledPlayer(policy, world.config, world.params, world.settings, self.plain, self.simple)


@dataclasses.dataclass(frozen=True)
class CompiledPlayer:
    """Plays job lists in turn."""

    policy: Policy
    config: EnvConfig
    params: EnvParams
    settings: Settings
    plain: bool = False
    simple: bool = False

    def play(
        self,
        job_lists: Sequence[JobList],
        first_seed: int = 0,
        *,
        report: Report | None = None,
        stop: threading.Event | None = None,
    ) -> list[Outcome]:
        """See `simulation.engine.Player`."""
        return [self._play(jobs, first_seed + i, report, stop) for i, jobs in enumerate(job_lists)]

    def _play(self, jobs: JobList, seed: int, report: Report | None, stop: threading.Event | None) -> Outcome:
        if self.plain:
            return self._run(jobs, seed, report, stop, in_python=True)
        if len(jobs) <= FEW_JOBS and IN_PYTHON.left_s > 0 and not self.policy.searches:
            with contextlib.suppress(_Spent):
                return self._run(jobs, seed, report, stop, in_python=True)
        said = None if report is None else describe_compiling(simple=self.simple)
        if report is not None and said is not None:
            report(Progress(self.policy.name, seed, 0, 0, len(jobs), 0.0, 0.0, 0, over=False, compiling=said))
        return self._run(jobs, seed, report, stop, in_python=False)

    def _run(
        self, jobs: JobList, seed: int, report: Report | None, stop: threading.Event | None, *, in_python: bool
    ) -> Outcome:
        """In Python or as machine code. `_Spent` if Python takes longer than `IN_PYTHON` has left."""
        begin = time.perf_counter()
        run = self.prepared(jobs, seed, in_python=in_python)
        compile_s, begin = time.perf_counter() - begin, time.perf_counter()
        fewest = 1 if self.policy.searches else FEWEST_ROUNDS
        over, why, rounds, wall_s = False, None, fewest, 0.0
        while not over and why is None:
            if stop is not None and stop.is_set():
                raise Stopped
            began_s = time.thread_time()
            over = run.go_on(rounds)
            limited = in_python and not self.plain
            if limited and IN_PYTHON.spent(time.thread_time() - began_s) and not over:
                raise _Spent
            took_s, wall_s = time.perf_counter() - begin - wall_s, time.perf_counter() - begin
            rounds = max(fewest, int(rounds * np.clip(CHUNK_S / max(took_s, 1e-9), 0.1, 10.0)))
            why = None if over else explain_overdue(self.settings, wall_s)
            if report is not None:
                report(_progress(self.policy.name, run, len(jobs), seed, wall_s, over=over or why is not None))
        why = why or explain_horizon(self.params, self.settings)
        return _outcome(self.policy.name, run, jobs, self.settings, wall_s, compile_s, why)

    def prepared(self, jobs: JobList, seed: int, *, in_python: bool) -> Run:
        """A run of which nothing has been played, but its machine code is loaded."""
        slots = {"queue_slots": len(jobs), "running_slots": most_running(self.params.cluster, [jobs])}
        config = dataclasses.replace(self.config, **slots)
        table = to_table(jobs, self.settings.interval_s, sets=config.gpu_sets, asks=config.asks)
        if self.policy.searches:
            drawn = (self.settings.seed, seed)
            run = SearchedRun(config, self.params, table, self.policy, self.settings.interval_s, drawn)
        else:
            args = (config, self.params, table, self.policy, self.settings.interval_s)
            run = Run(*args, in_python=in_python, pairs=pairs_of(self.settings, seed), simple=self.simple)
        run.go_on(0)
        return run


class Allowance:
    """CPU seconds that all threads together may play in Python."""

    def __init__(self, left_s: float) -> None:
        self.left_s, self._lock = left_s, threading.Lock()

    def spent(self, s: float) -> bool:
        """Take from it; whether nothing is left then."""
        with self._lock:
            self.left_s -= s
            return self.left_s <= 0


IN_PYTHON = Allowance(2.0)  # of this process: about what it takes to load machine code, a tenth of making it


class _Spent(Exception):
    """Nothing is left of the allowance."""


def _progress(name: str, run: Run, total: int, seed: int, wall_s: float, *, over: bool) -> Progress:
    return Progress(
        policy=name,
        seed=seed,
        finished=run.finished + int((run.home[: run.arrived] < 0).sum()),
        arrived=run.arrived,
        total=total,
        simulated_s=run.simulated_s,
        wall_s=wall_s,
        steps=run.rounds,
        over=over,
    )


def _outcome(
    name: str, run: Run, jobs: JobList, settings: Settings, wall_s: float, compile_s: float, why: str
) -> Outcome:
    """`why` the run was cut off, if it was."""
    records = run.tables.records
    start, finish_s = records["start"], records["finish_s"]
    status = np.where(start < 0, WAITING, np.where(np.isnan(finish_s), RUNNING, FINISHED))
    status[run.queued] = WAITING  # some of them have run before
    status = np.where(run.home < 0, REJECTED, status)
    status = np.where(np.arange(len(jobs)) < run.arrived, status, NOT_ARRIVED).astype(np.int8)
    done = np.isin(status, (FINISHED, REJECTED)).all()
    stats = RunStats(
        wall_s=wall_s,
        compile_s=compile_s,
        steps=run.rounds,
        simulated_s=run.simulated_s,
        running_slots=run.world.running_slots,
        queue_slots=run.world.queue_slots,
        peak_running=run.peak_running,
        peak_queue=run.peak_queue,
        illegal=0,
        engine=COMPILED,
    )
    found = Outcome(
        policy=name,
        jobs=jobs,
        status=status,
        partition=records["partition"].astype(np.int16),
        start_s=np.where(start < 0, np.nan, start * settings.interval_s),
        finish_s=finish_s,
        workers=run.tables.placement if settings.record_placements else None,
        gpu=records["gpu"].astype(np.int32) if settings.record_placements and run.world.shared_gpus else None,
        cut_off=None if done else why,
        stats=stats,
        forwards=records["forwards"].astype(np.int8),
    )
    return add_interruptions(found, run.tables.service, settings, run.log) if settings.stops else found
