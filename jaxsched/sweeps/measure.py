"""A trained policy on a sweep's tests: its own runs, and those of the hand-written policies, which are made once."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxsched.evaluation.compare import compare
from jaxsched.evaluation.metrics import SWEPT
from jaxsched.evaluation.statistics import mean_interval
from jaxsched.evaluation.tables import PolicyResult
from jaxsched.learning.options import EnvironmentConfig, WorkloadConfig
from jaxsched.simulation.engine import Report
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.sweeps.file import Tests, digest, settings_of
from jaxsched.workload.load import SYNTHETIC

BASELINES_FILE = "baselines.jsonl"


class Test(NamedTuple):
    """One test of a policy: rules, and what `load_scenario` makes cluster and jobs of."""

    name: str  # WORKLOAD at LOAD
    settings: Settings
    about: dict[str, Any]
    policies: tuple[str, ...]  # to compare with

    @property
    def id(self) -> str:
        """A digest of all that the hand-written policies' runs depend on."""
        return digest([dataclasses.asdict(self.settings) | self.about, self.policies])


def tests_of(tests: Tests, env: EnvironmentConfig, jobs: WorkloadConfig) -> list[Test]:
    """The tests of a policy that was trained on these."""
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
        "load": 0.0,
        "num_jobs": tests.num_jobs,
        "seed": tests.seed,
        "seeds": tests.seeds,
        **(synthetic if tests.workload in SYNTHETIC else {}),
    }
    settings = settings_of(tests, env)
    return [
        Test(f"{tests.workload} at {load:g}", settings, about | {"load": load}, tests.policies) for load in tests.loads
    ]


def measure(test: Test, policies: Sequence[Path], report: Report | None = None) -> list[dict[str, Any]]:
    """Figures of each policy on a test, all measured at once; `report`: as of `compare`.

    `jct_by_list_s` are its mean JCTs on each job list, null where it did not finish. `run_s_per_job` is what its runs
    took on the wall, simulator and decisions together and several runs at a time, without compilation.
    """
    scenario = load_scenario(**test.about)
    names, jobs = [str(policy) for policy in policies], sum(map(len, scenario.jobs))
    found = compare(scenario.cluster, scenario.jobs, names, test.settings, config=scenario.config, report=report)
    return [
        {
            **{metric.name: _number(getattr(row.figures, metric.name)) for metric in SWEPT},
            "jct_by_list_s": _by_list(row),
            "run_s_per_job": sum(one.stats.wall_s for one in row.outcomes) / jobs,
            "notes": row.notes,
        }
        for row in found.rows
    ]


def baselines(test: Test) -> dict[str, Any]:
    """Mean JCTs on each job list of the hand-written policies: a row of `BASELINES_FILE`."""
    scenario = load_scenario(**test.about)
    comparison = compare(scenario.cluster, scenario.jobs, test.policies, test.settings, config=scenario.config)
    return {
        "id": test.id,
        "test": dataclasses.asdict(test.settings) | test.about,
        "jct_by_list_s": {row.name: _by_list(row) for row in comparison.rows},
        "notes": {row.name: row.notes for row in comparison.rows},
    }


def compare_with_rules(figures: dict[str, Any], rules: dict[str, list[float | None]]) -> dict[str, Any]:
    """The figures of a policy with their ratio to the best hand-written policy's, the one of least mean over the lists.

    `rules` are mean JCTs by list, of those on the same test.
    """
    finished = {name: whole for name, one in rules.items() if (whole := _whole(one)) is not None}
    means = {name: float(np.mean(whole)) for name, whole in finished.items()}
    best = min(means, key=means.__getitem__, default=None)
    result = {name: value for name, value in figures.items() if name != "notes"}
    result |= {"baselines_jct_s": means, "best_baseline": best, "ratio": None, "notes": figures["notes"]}
    whole = _whole(figures["jct_by_list_s"])
    if best is not None and whole is not None:
        ratios = np.array(whole) / np.array(finished[best])
        low, high = mean_interval(ratios)
        result |= {"ratio": float(ratios.mean()), "ratio_ci95": [_number(low), _number(high)]}
    return result


def _by_list(row: PolicyResult) -> list[float | None]:
    return [None if result.unfinished else float(result.jct_s[result.finished].mean()) for result in row.outcomes]


def _whole(jct_s: list[float | None]) -> list[float] | None:
    """The means of all job lists, if a policy finished every one."""
    known = [one for one in jct_s if one is not None]
    return known if len(known) == len(jct_s) else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
