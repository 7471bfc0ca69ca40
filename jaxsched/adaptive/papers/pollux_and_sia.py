"""Tables of Pollux (OSDI 2021) and Sia (SOSP 2023), played again."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxsched.adaptive.policies import POLICIES
from jaxsched.adaptive.profiles import ProfileLimits, read_applications
from jaxsched.adaptive.simulate import Nodes, Result, Rules, simulate
from jaxsched.adaptive.workload import applications_in, read_workload
from jaxsched.errors import UserError
from jaxsched.io.csv_file import read_table
from jaxsched.workload.rows import Row

LOADS = ("0.5", "1.0", "1.5", "2.0")
PERIODS = {"30s": 30.0, "1m": 60.0, "2m": 120.0, "4m": 240.0, "8m": 480.0}
INTERFERENCE = {"avoid": 0.0, "noavoid": 0.0, "inter25": 0.25, "inter50": 0.5}


class Case(NamedTuple):
    """One row of a published table: which policy plays which workloads by which rules."""

    experiment: str
    run: str
    policy: str
    workloads: str  # the folder
    rules: Rules


class Line(NamedTuple):
    """A row of our table."""

    case: Case
    workloads: int  # that were played
    ours_s: float  # mean JCT, as a mean over the workloads that are published
    published_s: float  # NaN: not published
    jobs: int  # that are published
    equal: int  # of these, that end in the same second


# Of one job: case, workload, name, JCT.
JobTime = tuple[Case, str, str, float]


def pollux_cases() -> list[Case]:
    """Its experiments on load, on the period between decisions, and on interference."""
    at_load = [
        Case("results-jobload", f"{policy}-{load}", policy, f"workloads-{load}", Rules())
        for policy in ("tiresias", "optimus", "pollux")
        for load in LOADS
    ]
    periods = [
        Case("results-period", f"pollux-{name}", "pollux", "workloads-1.0", Rules(period_s=period))
        for name, period in PERIODS.items()
    ]
    shared = [
        Case("results-inter", name, "pollux", "workloads-1.0", Rules(interference=lost))
        for name, lost in INTERFERENCE.items()
    ]
    return at_load + periods + shared


def play_pollux(data: str | Path, report: Callable[[Line], object] = print) -> list[JobTime]:
    """Plays every case on the files of a folder, and hands out a line for each; returns the JCT of every job.

    Args:
        data: holds `profiles`, `workloads-LOAD`, and `results_per_job.csv` (experiment,run,workload,job,jct_s).
        report: is called with every line.

    Raises:
        UserError: a file is missing, or is not what it should be.
    """
    folder = Path(data)
    apps, published = read_applications(folder / "profiles"), _published(folder / "results_per_job.csv")
    times: list[JobTime] = []
    for case in pollux_cases():
        paths = workload_files(folder / case.workloads)
        results = simulate(POLICIES[case.policy], apps, [read_workload(path, apps) for path in paths], rules=case.rules)
        named = dict(zip([path.stem for path in paths], results, strict=True))
        report(_line(case, named, published))
        times += [(case, workload, *of_job) for workload, result in named.items() for of_job in _jcts(result)]
    return times


def workload_files(folder: Path) -> list[Path]:
    """The files `workload-N.csv` of a folder, by N. UserError if there is none."""
    found = sorted(folder.glob("workload-*.csv"), key=lambda path: (len(path.stem), path.stem))
    if not found:
        raise UserError(f"{folder}: holds no workload-N.csv, should hold one at least")
    return found


def _jcts(result: Result) -> Iterator[tuple[str, float]]:
    return zip([job.name for job in result.jobs], map(float, result.jct_s), strict=True)


def _published(path: Path) -> Mapping[tuple[str, str, str], Mapping[str, float]]:
    table = read_table(path)
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for line, cells in table.rows:
        row = Row(path, line, dict(zip(table.header, cells, strict=True)))
        found[row.name("experiment"), row.name("run"), row.name("workload")][row.name("job")] = row.number("jct_s")
    return found


def _line(case: Case, results: Mapping[str, Result], published: Mapping) -> Line:
    pairs: list[tuple[Sequence[float], Sequence[float]]] = []
    for workload, result in results.items():
        known = published.get((case.experiment, case.run, workload), {})
        both = [(ours, known[name]) for name, ours in _jcts(result) if name in known]
        if both:
            pairs.append(([ours for ours, _ in both], [theirs for _, theirs in both]))
    means = np.array([[np.mean(ours), np.mean(theirs)] for ours, theirs in pairs]).reshape(-1, 2)
    return Line(
        case=case,
        workloads=len(results),
        ours_s=float(means[:, 0].mean()) if pairs else float(np.mean([r.jct_s.mean() for r in results.values()])),
        published_s=float(means[:, 1].mean()) if pairs else float("nan"),
        jobs=sum(len(ours) for ours, _ in pairs),
        equal=sum(int(np.sum(np.array(ours) == np.array(theirs))) for ours, theirs in pairs),
    )


THREE_TYPES = (Nodes(6, 4, "aws"), Nodes(3, 8, "rtx"), Nodes(2, 8, "dgx-ext"))
ONE_TYPE = (Nodes(16, 4, "aws"),)
# What its simulator counts: steps take longer than measured, as on its real cluster, and restarts take so many seconds.
SLOWER = {"cifar10": 1.8, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2, "ncf": 1.5}
RESTARTS_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}


class SiaFigures(NamedTuple):
    """Of a group of workloads: means over workloads, and the 99th percentile of all jobs."""

    jct_h: float
    p99_h: float
    makespan_h: float
    gpu_h: float


class SiaCase(NamedTuple):
    """A row of its tables."""

    trace: str  # the folder of workloads
    nodes: tuple[Nodes, ...]
    published: SiaFigures
    interval_h: float  # that is printed for the mean; NaN: none is

    @property
    def types(self) -> int:
        """Of GPUs."""
        return len(self.nodes)


CASES = (
    SiaCase("philly", THREE_TYPES, SiaFigures(0.6, 9.5, 14.2, 4.0), 0.1),
    SiaCase("saturn", THREE_TYPES, SiaFigures(0.7, 10.9, 14.9, 4.8), 0.1),
    SiaCase("newtrace", THREE_TYPES, SiaFigures(0.7, 4.6, 52.2, 3.0), 0.1),
    SiaCase("philly", ONE_TYPE, SiaFigures(1.9, 18.1, 21.4, 8.4), float("nan")),
)


class SiaLine(NamedTuple):
    """A row of our table."""

    case: SiaCase
    policy: str
    workloads: int
    ours: SiaFigures


# Of one job: trace, GPU types, policy, workload, name, JCT.
SiaJob = tuple[str, int, str, str, str, float]


def play_sia(data: str | Path, report: Callable[[SiaLine], object] = print) -> list[SiaJob]:
    """Plays every trace of a folder under `sia` and its greedy twin, and hands out the lines; returns every job's JCT.

    Args:
        data: holds `profiles` and `workloads/TRACE`, as `siasosp23/artifacts` has them; `missing_traces` are left out.
        report: is called with every line.

    Raises:
        UserError: a file is missing, or is not what it should be.
    """
    times: list[SiaJob] = []
    without = missing_traces(data)
    for case in CASES:
        folder = Path(data) / "workloads" / case.trace
        if case.trace in without:
            continue
        for policy in ("sia", "sia-greedy"):
            results = play_case(Path(data), case, workload_files(folder), policy)
            report(SiaLine(case, policy, len(results), figures(list(results.values()))))
            times += [
                (case.trace, case.types, policy, workload, job.name, float(jct_s))
                for workload, result in results.items()
                for job, jct_s in zip(result.jobs, result.jct_s, strict=True)
            ]
    return times


def missing_traces(data: str | Path) -> list[str]:
    """Traces of the tables that have no folder there. The first has to be there."""
    others = dict.fromkeys(case.trace for case in CASES if case.trace != CASES[0].trace)
    return [trace for trace in others if not (Path(data) / "workloads" / trace).is_dir()]


def play_case(
    data: Path, case: SiaCase, paths: list[Path], policy: str, slower: Mapping[str, float] = SLOWER
) -> dict[str, Result]:
    """The workloads of a trace, by name. `slower` says how many times longer than measured steps take."""
    limits = {name: ProfileLimits(slower=times) for name, times in slower.items()}
    names = set().union(*map(applications_in, paths))
    apps = read_applications(data / "profiles", tuple(kind.kind for kind in case.nodes), limits, names)
    lists = [read_workload(path, apps) for path in paths]
    results = simulate(POLICIES[policy], apps, lists, case.nodes, Rules(restart_s=RESTARTS_S))
    return dict(zip([path.stem for path in paths], results, strict=True))


def figures(results: list[Result]) -> SiaFigures:
    """As Sia's tables have them, in hours."""
    means = [(r.jct_s.mean(), r.finish_s.max() - r.jobs[0].submit_s, r.gpu_s.mean()) for r in results]
    jct_s, makespan_s, gpu_s = np.mean(means, axis=0)
    p99_s = np.percentile(np.concatenate([r.jct_s for r in results]), 99)
    return SiaFigures(*(float(seconds) / 3600 for seconds in (jct_s, p99_s, makespan_s, gpu_s)))
