"""A trained policy on a sweep's tests: its own runs, and those of the hand-written policies, which are made once."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxsched.env.queues import Discipline
from jaxsched.errors import UserError
from jaxsched.evaluation.compare import compare
from jaxsched.evaluation.metrics import SWEPT, mean_interval
from jaxsched.evaluation.tables import PolicyResult
from jaxsched.io.cards import WEIGHTS_FILE
from jaxsched.learning.config import TrainConfig
from jaxsched.policies.checkpoint import read_card
from jaxsched.policies.registry import parse
from jaxsched.policies.spec import spell
from jaxsched.simulation.engine import Report
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import check_world
from jaxsched.sweeps.plan import Tests, digest, settings_of
from jaxsched.workload.load import SYNTHETIC

BASELINES_FILE = "baselines.jsonl"


class Test(NamedTuple):
    """One test of a policy: rules, and what `load_scenario` makes cluster and jobs of."""

    name: str  # WORKLOAD at LOAD
    settings: Settings
    about: dict[str, Any]
    policies: tuple[str, ...]  # to compare with
    prior: str | None  # the rule that the untrained network is a soft form of

    @property
    def id(self) -> str:
        """A digest of all that the hand-written policies' runs depend on."""
        return digest([dataclasses.asdict(self.settings) | self.about, self.policies, self.prior])


def prior_rule(config: TrainConfig, settings: Settings, policies: Sequence[str]) -> str | None:
    """The rule that the network is a soft form of before it is trained (docs/learning.md, "The prior").

    It has the name that it has in `policies`, if it is there. None where the network has no prior, and where there is
    no such rule under these settings.
    """
    usual = parse("greedy-wait:spread" if config.network.looks_ahead else "greedy-wait:spread+p1").spec
    assert usual
    queue = Discipline(**dataclasses.asdict(config.queue))
    rule = dataclasses.replace(usual, queue=dataclasses.replace(queue, window=usual.queue.window))
    name = next((name for name in policies if parse(name).act == rule), spell(rule))
    if name is None or not config.network.prior:
        return None
    try:
        check_world(parse(name), settings)
    except UserError:
        return None
    return name


def same_policy(folder: Path) -> str:
    """The same for checkpoints that are the same policy, whatever else their cards say."""
    card = read_card(folder)
    weights = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    return digest([weights, *(card[name] for name in ("network", "queue", "max_forwards", "sizes"))])


def tests_of(tests: Tests, config: TrainConfig) -> list[Test]:
    """The tests of a policy that was trained so."""
    env, jobs = config.env, config.workload
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
    prior = prior_rule(config, settings, tests.policies)
    return [
        Test(f"{tests.workload} at {load:g}", settings, about | {"load": load}, tests.policies, prior)
        for load in tests.loads
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
    policies = list(test.policies)
    if test.prior is not None and test.prior not in policies:
        policies.append(test.prior)
    comparison = compare(scenario.cluster, scenario.jobs, policies, test.settings, config=scenario.config)
    return {
        "id": test.id,
        "test": dataclasses.asdict(test.settings) | test.about,
        "jct_by_list_s": {row.name: _by_list(row) for row in comparison.rows},
        "notes": {row.name: row.notes for row in comparison.rows},
    }


def with_ratios(
    figures: dict[str, Any], rules: dict[str, list[float | None]], prior: str | None, policies: Sequence[str]
) -> dict[str, Any]:
    """`compare_with_rules` of a trained policy, of the untrained one, and of the rule that its prior is.

    Args: `policies`: those of `rules` to compare with; the prior's rule is another one where it is none of them.
    """
    among = {name: own for name, own in rules.items() if name in policies}
    result = compare_with_rules({name: value for name, value in figures.items() if name != "untrained"}, among)
    if "untrained" in figures:
        result["untrained"] = compare_with_rules(figures["untrained"], among)
    if prior is not None:
        own = rules[prior]
        mean = float(np.mean(whole)) if (whole := _whole(own)) is not None else None
        known = {**{metric.name: None for metric in SWEPT}, "jct_mean_s": mean, "jct_by_list_s": own, "notes": []}
        result["prior"] = compare_with_rules(known, among) | {"policy": prior}
    return result


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
