"""A trained policy on a sweep's tests: its own runs, and those of the hand-written policies, which are made once."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from jaxsched.evaluation.compare import PolicyResult, compare
from jaxsched.evaluation.statistics import mean_interval
from jaxsched.simulation.scenario import Scenario, load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.training.config import EnvironmentConfig, WorkloadConfig
from jaxsched.training.json_lines import append, read_rows
from jaxsched.training.sweep_file import Sweep, Tests, digest, settings_of
from jaxsched.workload.load import SYNTHETIC

BASELINES_FILE = "baselines.jsonl"


def measure(sweep: Sweep, env: EnvironmentConfig, workload: WorkloadConfig, policy: Path) -> dict[str, dict[str, Any]]:
    """By test, `WORKLOAD at LOAD`: figures of a policy trained on these, and their ratio to the best hand-written's.

    `jct_by_list_s` are its mean JCTs on each job list, null where it did not finish; the best policy is the one of
    least mean over the lists. `run_s_per_job` is what its runs took on the wall, simulator and decisions together and
    several runs at a time, without compilation.
    """
    found = {}
    for load in sweep.tests.loads:
        scenario, settings, about = _test(sweep.tests, env, workload, load)
        rules = _baselines(sweep, scenario, settings, about)
        row = compare(scenario.cluster, scenario.jobs, [str(policy)], settings, config=scenario.config).rows[0]
        own = _by_list(row)
        finished = {name: whole for name, one in rules.items() if (whole := _whole(one)) is not None}
        means = {name: float(np.mean(whole)) for name, whole in finished.items()}
        best = min(means, key=means.__getitem__, default=None)
        result = {
            "jct_mean_s": _number(row.figures.jct_mean_s),
            "jct_p99_s": _number(row.figures.jct_p99_s),
            "jct_by_list_s": own,
            "run_s_per_job": sum(one.stats.wall_s for one in row.outcomes) / sum(map(len, scenario.jobs)),
            "baselines_jct_s": means,
            "best_baseline": best,
            "ratio": None,
            "notes": row.notes,
        }
        whole = _whole(own)
        if best is not None and whole is not None:
            ratios = np.array(whole) / np.array(finished[best])
            low, high = mean_interval(ratios)
            result |= {"ratio": float(ratios.mean()), "ratio_ci95": [_number(low), _number(high)]}
        found[f"{sweep.tests.workload} at {load:g}"] = result
    return found


def _test(
    tests: Tests, env: EnvironmentConfig, jobs: WorkloadConfig, load: float
) -> tuple[Scenario, Settings, dict[str, Any]]:
    """Cluster, jobs and rules of one test of a policy, and the same in plain values."""
    cluster, schedulers = tests.cluster or env.cluster, tests.schedulers or env.schedulers
    synthetic = {
        "mean_duration_s": tests.mean_duration_s or jobs.mean_duration_s,
        "duration_cap_s": tests.duration_cap_s or jobs.duration_cap_s,
    }
    about = {
        "cluster": cluster,
        "workload": tests.workload,
        "schedulers": schedulers,
        "mix": tests.mix,
        "load": load,
        "num_jobs": tests.num_jobs,
        "seed": tests.seed,
        "seeds": tests.seeds,
        **(synthetic if tests.workload in SYNTHETIC else {}),
    }
    settings = settings_of(tests, env)
    return load_scenario(**about), settings, dataclasses.asdict(settings) | about


def _baselines(
    sweep: Sweep, scenario: Scenario, settings: Settings, about: dict[str, Any]
) -> dict[str, list[float | None]]:
    """Mean JCTs on each job list of the hand-written policies; kept in the sweep's folder."""
    path = sweep.out / BASELINES_FILE
    key = digest([about, sweep.tests.policies])
    for row in read_rows(path):
        if row["id"] == key:
            return row["jct_by_list_s"]
    comparison = compare(scenario.cluster, scenario.jobs, sweep.tests.policies, settings, config=scenario.config)
    row = {
        "id": key,
        "test": about,
        "jct_by_list_s": {row.name: _by_list(row) for row in comparison.rows},
        "notes": {row.name: row.notes for row in comparison.rows},
    }
    append(path, row)
    return row["jct_by_list_s"]


def _by_list(row: PolicyResult) -> list[float | None]:
    return [None if result.unfinished else float(result.jct_s[result.finished].mean()) for result in row.outcomes]


def _whole(jct_s: list[float | None]) -> list[float] | None:
    """The means of all job lists, if a policy finished every one."""
    known = [one for one in jct_s if one is not None]
    return known if len(known) == len(jct_s) else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
