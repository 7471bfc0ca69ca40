"""Every policy on the same jobs: the one function behind `jaxsched evaluate`, `simulate` and `quickstart`."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from jaxsched.border import checked
from jaxsched.bounds import jct_lower_bound_s
from jaxsched.cluster.hardware import Cluster, reference_type, total_gpus
from jaxsched.cluster.presets import get_cluster
from jaxsched.dynamics.batching import CPU
from jaxsched.dynamics.reference import on_reference, profiles_on
from jaxsched.errors import UserError
from jaxsched.evaluation.metrics import (
    UNKNOWN,
    Metrics,
    batch_interval,
    group_by_end,
    job_counts,
    mean_interval,
    mean_of,
    metrics,
    notes,
    tenant_shares,
)
from jaxsched.evaluation.tables import Comparison, PolicyResult, best_baseline
from jaxsched.machine import versions
from jaxsched.policies.policy import Policy
from jaxsched.policies.registry import parse_all
from jaxsched.policies.rules import Rule
from jaxsched.simulation.device import uses_accelerator
from jaxsched.simulation.engine import Report
from jaxsched.simulation.outcome import Outcome, rejections
from jaxsched.simulation.scenario import Workload, check_options, job_lists, load_scenario
from jaxsched.simulation.settings import Settings, compact_tenants
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.jobs import ENDS, JobList

# Policies, cluster, job lists, settings, report: see `simulate`.
Simulate = Callable[
    [Sequence[Policy], Cluster, Sequence[JobList], Settings, Report | None], Mapping[str, list[Outcome]]
]


@checked
def compare(
    cluster: str | Cluster,
    jobs: Workload,
    policies: str | Sequence[str | Path | Rule | Policy],
    settings: Settings | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    report: Report | None = None,
    play: Simulate = simulate,
    **options: Any,
) -> Comparison:
    """Run every policy on the same jobs until all have finished. Print the result to see a table.

    Args:
        cluster: a name or file, see `get_cluster`, or a cluster.
        jobs: one job list, several (one per seed), the name or file of a workload, or a function from a seed to a list.
        policies: names of hand-written ones, checkpoints, placement rules, or `Policy`s, see `parse`; or one name.
        settings: what all policies play under; None: the defaults.
        config: further entries of the result's `config`.
        report: called with the progress of a run, possibly from several threads at once.
        play: what plays the runs; `simulation.simulate.Elsewhere` does it on other machines.
        options: fields of `Settings` that differ from `settings`, such as `knows` or `preemption`; and where `jobs` is
            a name those of `load_scenario`, such as `load`, `num_jobs`, `seeds`, `seed` (of a function the last two;
            `seed` is also that of policies that draw). `interference` may be a model or a law, see
            `dynamics.interference`; JAX plays a law that is not ours.

    Returns:
        A row per policy, in their order; times in seconds.

    Raises:
        UserError: on an unknown policy or option, or if no job fits the cluster.
    """
    check_options("compare", options, _OF_SETTINGS)
    settings, options = _split_settings(settings or Settings(), options, isinstance(jobs, str | Path) or callable(jobs))
    policies = parse_all([policies] if isinstance(policies, str) else policies)
    if isinstance(jobs, str | Path) or callable(jobs):
        scenario = load_scenario(cluster, jobs, models=settings.models, **options)
        cluster, jobs_by_seed, config = scenario.cluster, scenario.jobs, scenario.config | dict(config or {})
    else:
        if options:
            raise UserError(f"compare: {', '.join(options)}: only for jobs by name, these are given as they are")
        cluster = get_cluster(cluster) if isinstance(cluster, str) else cluster
        if isinstance(jobs, Sequence) and not jobs:
            raise UserError("compare: jobs is an empty list; it should have at least one JobList")
        jobs_by_seed = job_lists(jobs)
    models = profiles_on(cluster, get_catalogue(settings.models).models)
    typed = lambda jobs: on_reference(cluster, models, jobs) if (jobs.gpu_type != "").any() else jobs
    lists = compact_tenants([typed(jobs) for jobs in jobs_by_seed])
    results = play(policies, cluster, lists, settings, report)
    gpus = total_gpus(cluster)
    bounds = np.array(
        [jct_lower_bound_s(cluster, jobs, settings.interval_s, models, stops=settings.stops) for jobs in lists]
    )
    told = (config or {}).get("seeds")  # further entries may be anything
    seeds = told if isinstance(told, list) and len(told) == len(lists) else range(len(lists))
    rows = [_row(policy, results[policy.name], seeds, gpus, bounds) for policy in policies]
    on = {"reference_gpu": reference_type(cluster), "run_times_on": reference_type(cluster)}
    config = on | dict(config or {}) | settings.described()
    played = {} if uses_accelerator(settings.device) else {"device": CPU}
    return Comparison(_add_ratios(rows), float(bounds.mean()), config, versions() | played, settings)


_OF_SETTINGS = [field.name for field in dataclasses.fields(Settings)]


def _split_settings(settings: Settings, options: Mapping[str, Any], made: bool) -> tuple[Settings, dict[str, Any]]:
    """The settings with the options that are theirs, and the others; where jobs are `made`, `seed` is both."""
    changes = {name: value for name, value in options.items() if name in _OF_SETTINGS}
    rest = {name: options[name] for name in options if name not in changes or (made and name == "seed")}
    return dataclasses.replace(settings, **changes), rest


def _row(
    policy: Policy, outcomes: list[Outcome], seeds: Sequence[int], gpus: int, bounds_s: Float64[np.ndarray, "seeds"]
) -> PolicyResult:
    """The policy's figures; the ratios come later."""
    by_seed = [metrics(result, gpus) for result in outcomes]
    figures = Metrics(*np.mean([dataclasses.astuple(seed) for seed in by_seed], axis=0).tolist())
    if math.isnan(figures.jct_mean_s):
        interval = UNKNOWN
    elif len(by_seed) > 1:
        interval = mean_interval(np.array([seed.jct_mean_s for seed in by_seed]))
    else:
        interval = batch_interval(outcomes[0].jct_s[outcomes[0].finished])
    counts = [job_counts(result) for result in outcomes]
    lost: dict[str, int] = {}
    for result in outcomes:
        for reason, count in rejections(result).items():
            lost[reason] = lost.get(reason, 0) + count
    cut = math.isnan(figures.jct_mean_s)
    ends = [] if cut else [group_by_end(result) for result in outcomes]
    total = counts[0]
    for count in counts[1:]:
        total = total + count
    return PolicyResult(
        name=policy.name,
        baseline=policy.is_rule,
        figures=figures,
        jct_ci95_s=interval,
        ratio=math.nan,
        ratio_ci95=UNKNOWN,
        gap=float(np.mean([seed.jct_mean_s for seed in by_seed] / bounds_s)),
        jobs=total,
        rejections=lost,
        notes=notes(outcomes, seeds),
        shares={} if cut else mean_of([tenant_shares(result) for result in outcomes]),
        ends={name: mean_of(found) for name in ENDS if (found := [end[name] for end in ends if name in end])},
        outcomes=outcomes,
    )


def _add_ratios(rows: list[PolicyResult]) -> list[PolicyResult]:
    best = best_baseline(rows)
    if best is None:
        return rows
    reference = np.array([result.jct_s[result.finished].mean() for result in best.outcomes])
    done = []
    for row in rows:
        if math.isnan(row.figures.jct_mean_s):
            done.append(row)
            continue
        ratios = np.array([result.jct_s[result.finished].mean() for result in row.outcomes]) / reference
        done.append(dataclasses.replace(row, ratio=float(ratios.mean()), ratio_ci95=mean_interval(ratios)))
    return done
