"""`jaxsched check`: what files hold, or what is wrong with them; `jaxsched import`: a job log becomes a trace."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsched.cli.options import Output, optional

HELP = """Say what files and folders hold, or what is wrong with them.

Known are job logs and traces (all that `jaxsched import` reads), node lists and host maps, measurements (.csv, .json),
cluster files, files of models, training configurations and sweeps (.yaml), recordings and logs of runs (.jsonl), and
the folders of checkpoints, fitted models and runs. Of a job log it says what was understood: columns, units, times,
rows left out, load. The exit code is 2 if one of them cannot be read.

Examples:
  jaxsched check trace.csv mine.yaml checkpoints/quickstart runs/mine
  jaxsched check --models models.yaml trace.csv
  jaxsched check sacct.csv --cluster leaf-spine-64
"""

Format = Annotated[str | None, optional("NAME")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """Say what files and folders hold, or what is wrong with them."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE ...")]
    """Files and folders."""
    models: Annotated[str | None, optional("FILE")] = None
    """Models of your own that traces name (as of `jaxsched evaluate`)."""
    format: Format = None
    """What job logs are, where their columns do not tell."""
    cluster: Annotated[str | None, optional("NAME|FILE")] = None
    """Say what load jobs are on this cluster."""
    strict: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Refuse rows of job logs that are no jobs; otherwise they are left out and counted."""
    json: Output = None
    """Also write what is said as JSON, by file."""

    def run(self) -> None:
        """What each one is. UserError of the last bad one after all have been looked at."""
        from jaxsched.cli.errors import tell
        from jaxsched.cli.output import check_report, write_report
        from jaxsched.errors import UserError

        if not self.files:
            raise UserError("check: name at least one file or folder")
        check_report(self.json, *self.files)
        gpus = gpus_of(self.cluster)
        bad: list[UserError] = []
        said: list[str] = []
        report: dict[str, Any] = {}
        for path in self.files:
            try:
                lines, report[str(path)] = self._look(path, gpus)
                said += [f"{path}: {lines[0]}", *lines[1:]]
            except UserError as error:
                bad.append(error)
                report[str(path)] = {"error": str(error)}
        write_report(self.json, report)  # first: who reads what is printed may have gone
        if said:
            print(*said, sep="\n")
        for error in bad[:-1]:
            tell(error)
        if bad:
            raise bad[-1]

    def _look(self, path: Path, gpus: int | None) -> tuple[list[str], dict[str, Any]]:
        """What is said of a file, and the same as JSON has it."""
        from jaxsched.workload.catalogue import get_catalogue
        from jaxsched.workload.traces import read_log

        what = None if self.format is not None else what_is(path)
        if what is not None:
            return [what], {"what": what}
        log = read_log(path, catalogue=get_catalogue(self.models), format=self.format, strict=self.strict)
        figures, lines = told(log, gpus, self.models)
        return lines, {"what": lines[0], **figures}


def what_is(path: Path) -> str | None:
    """What a file or folder holds that is no job log, in a few words; None if it is taken for one.

    UserError if it cannot be read as what it seems to be.
    """
    from jaxsched.errors import UserError
    from jaxsched.workload.readers.opening import PACKED, STDIN

    if path.is_dir():
        return _folder(path)
    if path == STDIN:
        return None
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    readers: dict[str, Callable[[Path], str | None]] = {
        ".csv": _csv,
        ".yaml": _yaml,
        ".yml": _yaml,
        ".jsonl": _lines,
        ".json": _json,
    }
    suffix = path.suffix.lower()
    logs = (*PACKED, ".tsv", ".txt", ".psv", ".log", ".swf", ".trace", ".parquet")
    if suffix and suffix not in (*readers, *logs):  # Philly's log has no ending
        raise UserError(f"{path}: is of no known kind, should end in {', '.join((*readers, *logs))}, or be a folder")
    return readers[suffix](path) if suffix in readers else None


def _folder(path: Path) -> str:
    from jaxsched.adaptive import learned
    from jaxsched.calibration import step_time
    from jaxsched.calibration.interference import files as interference
    from jaxsched.errors import UserError
    from jaxsched.io.cards import CARD_FILE
    from jaxsched.io.json_file import read_json, read_rows
    from jaxsched.learning.evolved.evolution import STATE_FILE
    from jaxsched.learning.evolved.evolution import read_saved_config as saved_evolved
    from jaxsched.learning.loop import METRICS_FILE, STATE_FOLDER
    from jaxsched.learning.state import read_saved_config
    from jaxsched.policies import evolved, exported
    from jaxsched.policies.checkpoint import WHAT, load_policy
    from jaxsched.sweeps.rows import ROWS_FILE, read_sweep_rows
    from jaxsched.workload import transformer

    if (path / STATE_FILE).is_file():
        run, found = saved_evolved(path), read_rows(path / METRICS_FILE)
        return f"a run that learns {run.learn} from {run.source}, {len(found)} of {run.generations} generations"
    if (path / ROWS_FILE).is_file():  # before the state, which runs that were trained at once leave there
        return f"a sweep, {len(read_sweep_rows(path / ROWS_FILE)):,} finished points"
    if (path / STATE_FOLDER).is_dir():
        config = read_saved_config(path / STATE_FOLDER)
        return f"a training run on {config.env.cluster}, {len(read_rows(path / METRICS_FILE))} of {config.ppo.chunks}"
    if not (path / CARD_FILE).is_file():
        raise UserError(f"{path}: is a folder without {CARD_FILE} and without {STATE_FOLDER}, so nothing of ours")
    card: Any = read_json(path / CARD_FILE)
    what = card.get("what") if isinstance(card, dict) else None
    readers: dict[Any, Callable[[Path], object]] = {
        WHAT: load_policy,
        **{what: functools.partial(evolved.load_policy, what=what) for what in evolved.KINDS},
        interference.WHAT: interference.load_model,
        step_time.WHAT: step_time.load_model,
        transformer.WHAT: transformer.load_constants,
        learned.WHAT: functools.partial(learned.load, name=str(path)),
        exported.WHAT: exported.load_exported,
    }
    if not isinstance(what, str) or what not in readers:
        raise UserError(f"{path / CARD_FILE}: what should be one of {', '.join(map(str, readers))}")
    readers[what](path)
    named = {WHAT: "checkpoint", evolved.LEVELS: "table of levels, a policy", evolved.SEEKING: "policy that seeks"}
    named[learned.WHAT] = "learned allocation, a policy of jobs with profiles"
    if what == exported.WHAT:
        return f"an {what}"
    return f"a {named.get(what, f'fitted model of {what}')}"


def _csv(path: Path) -> str | None:
    from jaxsched.calibration.interference.measurements import GPU_COLUMNS, NETWORK_COLUMNS, read_measurements
    from jaxsched.calibration.step_time import FORMATS as STEP_TIMES
    from jaxsched.calibration.step_time import read_step_times
    from jaxsched.calibration.transformer import FORMATS as ITERATIONS
    from jaxsched.calibration.transformer import read_iterations
    from jaxsched.cluster.inventory import HOST_COLUMNS, NODE_COLUMNS, READ, read_csv
    from jaxsched.errors import NotRead
    from jaxsched.io.csv_file import read_table
    from jaxsched.simulation.outcome import JOB_COLUMNS
    from jaxsched.workload.readers.table import first_cells
    from jaxsched.workload.traces import left_out

    names = first_cells(path)
    header = sorted(names)
    if header in (sorted(GPU_COLUMNS), sorted(NETWORK_COLUMNS)):
        return f"{read_measurements([path])[0].rows:,} measurements of interference"
    if header in [sorted(form.columns) for form in STEP_TIMES]:
        return f"{len(read_step_times([path]).step_s):,} measured step times"
    if header in [sorted(form.columns) for form in ITERATIONS]:
        return f"{len(read_iterations([path])[1]):,} measured iterations of transformers"
    for columns in (HOST_COLUMNS, NODE_COLUMNS):
        if set(names) >= set(columns):
            unread = [name for name in names if name not in READ[columns]]
            more = f"; not read: {', '.join(unread)}" if unread else ""
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotRead)  # said here
                servers, rows = len(read_csv(path).servers), len(read_table(path).rows)
            return f"a cluster of {servers:,} servers with GPUs{left_out({'no GPU': rows - servers})}{more}"
    if set(names) >= set(JOB_COLUMNS):
        return f"what became of {len(read_table(path).rows):,} jobs"
    return None


def _yaml(path: Path) -> str:
    from jaxsched.cluster.presets import read_cluster_file
    from jaxsched.errors import UserError
    from jaxsched.io.files import shorten
    from jaxsched.io.yaml_file import read_yaml
    from jaxsched.learning.config import load_config
    from jaxsched.sweeps.plan import load_sweep
    from jaxsched.workload.catalogue import get_catalogue

    content = read_yaml(path, "configs/quickstart.yaml")
    if content is None:
        raise UserError(f"{path}: is empty; see examples/cluster.yaml or configs/quickstart.yaml for examples")
    keys = set(content) if isinstance(content, dict) else set()
    if keys == {"models"}:
        get_catalogue(path)
        return f"{len(content['models']):,} model{'s' * (len(content['models']) > 1)} of jobs"
    if keys & {"servers", "topology", "gpu_speeds"}:
        inventory = read_cluster_file(path)
        named = ", ".join(f"{shorten(name)} {len(rows):,}" for name, rows in inventory.partitions.items())
        return f"a cluster of {len(inventory.servers):,} servers" + (f" in partitions ({named})" if named else "")
    if keys & {"axes", "variants", "base", "out"}:
        return f"a sweep of {len(load_sweep(path).points):,} points"
    return f"a training configuration for {load_config(path).env.cluster}"


def _json(path: Path) -> str | None:
    from jaxsched.calibration.interference.measurements import read_measurements
    from jaxsched.evaluation.saved import read_result
    from jaxsched.io.csv_file import MOST_BYTES
    from jaxsched.io.json_file import read_json
    from jaxsched.workload.traces import FORMATS

    content = read_json(path, most_bytes=MOST_BYTES)  # job logs are large
    if isinstance(content, dict) and {"policies", "config", "versions"} <= set(content):
        if "worlds" in content:
            return f"a comparison of {len(content['policies']):,} policies over {len(content['worlds']):,} worlds"
        return f"a comparison of {len(read_result(path).policies):,} policies"
    if isinstance(content, dict) and "traceEvents" in content:
        return f"a timeline for Perfetto, {len(content['traceEvents']):,} events"
    if any(source.rows is not None and source.rows(content) is not None for source in FORMATS):
        return None
    return f"{read_measurements([path])[0].rows:,} measurements of interference"


def _lines(path: Path) -> str:
    from jaxsched.io.files import read_text
    from jaxsched.io.json_file import MOST_LOG_BYTES, read_rows
    from jaxsched.kube.cluster.record import read_recording
    from jaxsched.sweeps.rows import read_baselines, read_sweep_rows

    first = read_text(path, MOST_LOG_BYTES)[:65536].split("\n", 1)[0]
    if '"baselines_jct_s"' in first:
        return f"{len(read_sweep_rows(path)):,} rows of a sweep"
    if '"jct_by_list_s"' in first:
        return f"{len(read_baselines(path)):,} measurements of a sweep's baselines"
    if '"chunk"' in first:
        return f"a training run's log of {len(read_rows(path)):,} rows"
    return f"a recording of {sum(1 for _ in read_recording(path)):,} lines"


IMPORT_HELP = """Show what a job log says, and write it as a trace.

Slurm (sacct -P, sacct --json), Philly, Helios, Acme, Alibaba (openb, PAI 2020, spot GPUs 2026), ITP, Tiresias, Muri,
Gavel, Pollux, Sia, the Standard Workload Format, and jaxsched's own; CSV with commas, semicolons or tabs, Parquet, each
packed with gzip or zstd or not. What the log does not say stays open: models are drawn when the trace is used.

Examples:
  sacct -aXP --starttime=2025-01-01 --format=JobID,User,Account,State,Submit,Start,End,ElapsedRaw,AllocTRES > log.csv
  jaxsched import log.csv -o trace.csv --cluster leaf-spine-64
  jaxsched evaluate --workload trace.csv --cluster leaf-spine-64 --policies pack pack:sjf+backfill greedy-wait
  zcat log.csv.gz | jaxsched import - -o trace.csv
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import:
    """Show what a job log says, and write it as a trace."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE|-")]
    """The log; - is standard input."""
    out: Annotated[Path | None, optional("FILE"), tyro.conf.arg(aliases=("-o",))] = None
    """Write the jobs as a trace (.csv)."""
    format: Format = None
    """What the log is, where its columns do not tell (`jaxsched check` names them)."""
    cluster: Annotated[str | None, optional("NAME|FILE")] = None
    """Say what load the jobs are on this cluster."""
    strict: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Refuse rows that are no jobs; otherwise they are left out and counted."""
    models: Annotated[str | None, optional("FILE")] = None
    """Models of your own that the log names (as of `jaxsched evaluate`)."""
    json: Output = None
    """Also write what is shown as JSON."""

    def run(self) -> None:
        """Read, show, write. UserError on any mistake."""
        from jaxsched.cli.output import results, text
        from jaxsched.io.files import check_ending, check_outputs
        from jaxsched.io.json_file import to_json
        from jaxsched.workload.catalogue import get_catalogue
        from jaxsched.workload.traces import read_log, write_log

        check_outputs({"--out": self.out, "--json": self.json}, [self.file, self.cluster, self.models])
        check_ending(self.out, ".csv", option="--out")
        gpus = gpus_of(self.cluster)
        log = read_log(self.file, catalogue=get_catalogue(self.models), format=self.format, strict=self.strict)
        found, lines = told(log, gpus, self.models)
        with results() as write:  # first: who reads what is printed may go
            write(self.json, text(to_json(found, 1)))
            write(self.out, lambda path: write_log(path, log))
            print(f"{self.file}: {lines[0]}", *lines[1:], sep="\n")


def gpus_of(cluster: str | None) -> int | None:
    """GPUs of a cluster; None if none is named."""
    from jaxsched.cluster.presets import get_inventory

    return None if cluster is None else sum(sum(server.groups) for server in get_inventory(cluster).servers)


def told(log: Any, gpus: int | None, models: str | None) -> tuple[dict[str, Any], list[str]]:
    """What a log was understood as: figures, and lines that say them."""
    from jaxsched.cluster.gpu_types import GPU_SPEEDS, find_gpu_type
    from jaxsched.workload.catalogue import get_catalogue
    from jaxsched.workload.jobs import split_types
    from jaxsched.workload.readers.summary import details, headline, understood
    from jaxsched.workload.traces import fill_in

    found = understood(log, fill_in(log, catalogue=get_catalogue(models)), gpus)
    named = {name for text in found["bound_to_gpu_types"] for name in split_types(text)}
    strange = {name for name in named if find_gpu_type(name) is None}
    unknown = sorted((set(found["gpu_types"]) - set(GPU_SPEEDS)) | strange)
    if unknown:
        found["remarks"].append(f"GPU types that only a cluster's gpu_speeds can tell: {', '.join(unknown)}")
    return found, [headline(found), *details(found)]
