"""Runs of hand-written rules by the compiled event loop, where that has all they need."""

import dataclasses
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from jaxsched.env.state import FINISHED, RUNNING, WAITING, EnvConfig, EnvParams
from jaxsched.errors import UserError
from jaxsched.evaluation.contenders import Contender
from jaxsched.simulation.engines.compiled.covered import why_not
from jaxsched.simulation.engines.jax.run import Progress, Report, Stopped, overdue
from jaxsched.simulation.outcome import NOT_ARRIVED, REJECTED, Outcome, RunStats
from jaxsched.simulation.settings import AUTO, COMPILED, JAX, Settings, most_running
from jaxsched.workload.jobs import JobList, to_table

CHUNK_S = 0.2  # of a run at a time, about
FEWEST_ROUNDS = 64

if TYPE_CHECKING:
    from jaxsched.simulation.engines.compiled.run import Run


def plays(one: Contender, config: EnvConfig, settings: Settings) -> bool:
    """Whether the compiled loop plays `one`. UserError if the settings ask for it and it cannot."""
    if settings.engine == JAX or (settings.engine == AUTO and settings.lanes):
        return False
    reason = why_not(config, one.spec)
    if reason is not None and settings.engine == COMPILED:
        raise UserError(f"engine compiled: cannot play {one.name!r}: {reason}; engine should be auto or jax")
    return reason is None


def rollout_natively(
    one: Contender,
    config: EnvConfig,
    params: EnvParams,
    jobs: JobList,
    settings: Settings,
    *,
    seed: int = 0,
    report: Report | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """The outcome of one job list, as of `rollout`; `seed` is its position. Raises `Stopped` once `stop` is set."""
    from jaxsched.simulation.engines.compiled.run import Run  # Numba takes half a second

    assert one.spec is not None
    slots = {"queue_slots": len(jobs), "running_slots": most_running(params.cluster, [jobs])}
    begin = time.perf_counter()
    config, table = dataclasses.replace(config, **slots), to_table(jobs, settings.interval_s)
    run = Run(config, params, table, one.spec, settings.interval_s)
    run.go_on(0)
    compile_s, begin = time.perf_counter() - begin, time.perf_counter()
    over, why, rounds, wall_s = False, None, FEWEST_ROUNDS, 0.0
    while not over and why is None:
        if stop is not None and stop.is_set():
            raise Stopped
        over = run.go_on(rounds)
        took_s, wall_s = time.perf_counter() - begin - wall_s, time.perf_counter() - begin
        rounds = max(FEWEST_ROUNDS, int(rounds * np.clip(CHUNK_S / max(took_s, 1e-9), 0.1, 10.0)))
        why = None if over else overdue(settings, wall_s)
        if report is not None:
            ended = over or why is not None
            report(_progress(one.name, run, len(jobs), seed, wall_s, over=ended))
    return _outcome(one.name, run, jobs, settings, wall_s, compile_s, why)


def _progress(name: str, run: "Run", total: int, seed: int, wall_s: float, *, over: bool) -> Progress:
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
    name: str, run: "Run", jobs: JobList, settings: Settings, wall_s: float, compile_s: float, why: str | None
) -> Outcome:
    """`why` the run was cut off, None if it was not or by the horizon."""
    start, finish_s = run.tables.records["start"], run.tables.records["finish_s"]
    status = np.where(start < 0, WAITING, np.where(np.isnan(finish_s), RUNNING, FINISHED))
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
    return Outcome(
        policy=name,
        jobs=jobs,
        status=status,
        partition=run.tables.records["partition"].astype(np.int16),
        start_s=np.where(start < 0, np.nan, start * settings.interval_s),
        finish_s=finish_s,
        workers=run.tables.placement if settings.record_placements else None,
        cut_off=None if done else why or settings.at_horizon,
        stats=stats,
    )
