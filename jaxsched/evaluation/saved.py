"""Results that `jaxsched evaluate --json` wrote, on one page: several tables, and their runs where they were kept."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from jaxsched.errors import UserError
from jaxsched.evaluation import tables
from jaxsched.evaluation.metrics import COLUMNS, JobCounts
from jaxsched.evaluation.report import check_number, page
from jaxsched.io.json_file import read_json
from jaxsched.io.schema import Count, Text, convert

Figure = float | None
SAME = ("jobs", "models", "servers", "gpus")  # of runs, where they are of the same jobs on the same cluster
MOST_NUMBERS = 1 << 24  # of zeros, which take no room in the file, but in the page
_UNIT, _SECONDS = "min", 60.0


_OTHERS = [(metric.name, Figure, dataclasses.field(default=None)) for metric in COLUMNS[1:]]  # older results lack some
_Figures: Any = dataclasses.make_dataclass("_Figures", _OTHERS, frozen=True, kw_only=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedPolicy(_Figures):
    """The figures of a policy that tables have, see `Comparison.to_json`; None where there is none."""

    jct_mean_s: Figure
    jct_ci95_s: tuple[float, float] | None
    ratio_to_best_baseline: Figure
    gap_to_bound: Figure
    jobs: JobCounts | None = None


@dataclasses.dataclass(frozen=True)
class SavedRemarks:
    """What is said of a policy beside its figures."""

    rejected_because: dict[Text, Count] = dataclasses.field(default_factory=dict)
    notes: list[Text] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class SavedConfig:
    """What is said of the jobs, and of each policy."""

    reference_gpu: Text = ""
    run_times_on: Text = ""
    skipped_rows: dict[Text, Count] | None = None
    runs: dict[str, SavedRemarks] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Saved:
    """One result. `runs` is what `report.runs` gave, if it was kept; `said` is what `config` has of policies."""

    policies: dict[str, SavedPolicy]
    config: dict[str, Any]
    bound_s: Figure = None
    runs: dict[str, Any] | None = None
    said: dict[str, SavedRemarks] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Packed:
    """Numbers of one kind: so many zeros, or bytes as text."""

    kind: Literal["float64", "float32", "int32", "uint16", "uint8"]
    zeros: Annotated[int, Meta(ge=0, le=MOST_NUMBERS)] | None = None
    base64: str | None = None


@dataclasses.dataclass(frozen=True)
class SavedLinks:
    """How full links were."""

    names: list[Text]
    end_s: float
    percent: Packed


@dataclasses.dataclass(frozen=True)
class SavedAttempts:
    """Every attempt at a job, where jobs may have several."""

    job: Packed
    start: Packed
    interval_s: float
    held_s: Packed
    ended: Packed
    restart_s: float


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """What `report.runs` gives of one policy."""

    name: Text
    start_s: Packed
    finish_s: Packed
    gpu: Packed
    parts: dict[str, Packed]
    links: SavedLinks
    decisions: list[dict[str, Any]]
    attempts: SavedAttempts | None = None
    end_s: float | None = None  # results of old do not say it, and nor which jobs came into a queue
    came: Packed | None = None


@dataclasses.dataclass(frozen=True)
class SavedJobs:
    """The jobs that all of them ran."""

    id: list[Text]
    submit_s: Packed
    ideal_s: Packed
    gpus: Packed
    model: Packed
    user: Packed


@dataclasses.dataclass(frozen=True)
class SavedRuns:
    """What `report.runs` gives."""

    policies: Annotated[list[SavedRun], Meta(min_length=1)]
    jobs: SavedJobs
    models: list[Text]
    servers: list[Count]
    gpus: Count
    tenants: list[Text] = dataclasses.field(default_factory=list)  # by their numbers; results of old have none


def read_result(path: str | Path) -> Saved:
    """A result from a file. UserError for what is none."""
    wanted = "a result that `jaxsched evaluate --json` wrote"
    none = f"{path}: is no result of `jaxsched evaluate --json`"
    content = read_json(path, wanted)
    if isinstance(content, dict) and "worlds" in content:
        raise UserError(f"{path}: is a comparison over worlds, of which there is no page; see --figure and --markdown")
    found = convert(Saved, content, none)
    found = dataclasses.replace(found, said=convert(SavedConfig, found.config, none).runs)
    if not found.policies:
        raise UserError(f"{path}: has no policies, should be {wanted}")
    if found.runs is not None:
        convert(SavedRuns, found.runs, f"{path}: its runs are not those of `jaxsched evaluate --keep-runs`")
    return found


def make_saved_page(results: Mapping[str, Saved]) -> str:
    """The page of results by name.

    UserError if the runs of two of them are not of the same jobs on the same cluster, or too many for a page.
    """
    several = len(results) > 1
    differing = _find_differing([result.config for result in results.values()])
    summaries = [(name, _summary(result, differing)) for name, result in results.items()]
    kept = {name: result.runs for name, result in results.items() if result.runs is not None}
    joined: dict[str, Any] | None = None
    for name, found in kept.items():
        policies = [run | {"name": f"{run['name']} ({name})" if several else run["name"]} for run in found["policies"]]
        if joined is None:
            joined = found | {"policies": policies}
        elif any(found[key] != joined[key] for key in SAME):
            raise UserError(
                f"report: the runs of {name} are not of the same jobs and cluster as those of {next(iter(kept))}"
            )
        else:
            joined["policies"] += policies
    if joined is not None:
        check_number(len(joined["policies"]))
    return page(", ".join(results), summaries, joined)


def _summary(result: Saved, differing: Sequence[str]) -> dict[str, Any]:
    said = {name: result.said.get(name, SavedRemarks()) for name in result.policies}
    order = sorted(result.policies.items(), key=lambda item: _or_nan(item[1].jct_mean_s, largest=True))
    about = [f"{name.replace('_', ' ')} {_short(result.config.get(name))}" for name in differing]
    known = [f"{name} {result.config[name]}" for name in ("cluster", "workload", "load") if result.config.get(name)]
    stopped = any(result.config.get(name) for name in ("preemption", "failures", "outages"))  # docs/bound.md
    whom = "No policy" if stopped else "No policy that never stops a job"
    bound = f"{whom} is under {_minutes(result.bound_s)} {_UNIT}."
    return {
        "about": ", ".join(about or known),
        "names": _names(),
        "lines": [_line(name + (" †" if said[name].notes else ""), policy) for name, policy in order],
        "legend": [*([] if result.bound_s is None else [bound]), *_legend(result, said)],
    }


def _legend(result: Saved, said: Mapping[str, SavedRemarks]) -> list[str]:
    """Where the jobs went, and what is wrong with some of the figures, as below the table of `evaluate`."""
    policies = result.policies.items()
    went = {name: (one.jobs, said[name].rejected_because) for name, one in policies if one.jobs is not None}
    notes = {name: one.notes for name, one in said.items()}
    return [*(tables.accounts(went) if went else []), *tables.remarks(result.config, notes)]


def _names() -> list[str]:
    first, *others = (metric.header for metric in COLUMNS)
    return ["policy", f"{first} ({_UNIT})", "95% interval", *others, "ratio", "to bound"]


def _line(name: str, policy: SavedPolicy) -> list[str]:
    low, high = policy.jct_ci95_s or (math.nan, math.nan)
    interval = "–" if math.isnan(low) else f"{_minutes(low)} to {_minutes(high)}"
    first, *others = (tables.figure(metric, _or_nan(getattr(policy, metric.name)), _SECONDS) for metric in COLUMNS)
    across = (policy.ratio_to_best_baseline, policy.gap_to_bound)
    return [name, first, interval, *others, *(tables.number(_or_nan(value), 3) for value in across)]


def _or_nan(value: Figure, largest: bool = False) -> float:
    return (math.inf if largest else math.nan) if value is None else value


def _minutes(seconds: Figure) -> str:
    return tables.number(_or_nan(seconds) / _SECONDS)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _find_differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Entries in which the configurations differ, apart from what says nothing of the world."""
    names = dict.fromkeys(name for config in configs for name in config if name not in ("runs", "record_placements"))
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]
