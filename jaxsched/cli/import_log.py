"""`jaxsched import`: a scheduler's job log becomes a trace in the native format, and what was understood is shown."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsched.cli.options import Output, optional

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

Format = Annotated[str | None, optional("NAME")]


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
        from jaxsched.cli.output import results, write_report
        from jaxsched.io.files import check_ending, check_outputs
        from jaxsched.workload.catalogue import get_catalogue
        from jaxsched.workload.traces import read_log, write_log

        check_outputs({"--out": self.out, "--json": self.json}, [self.file, self.cluster, self.models])
        check_ending(self.out, ".csv", option="--out")
        gpus = gpus_of(self.cluster)
        log = read_log(self.file, catalogue=get_catalogue(self.models), format=self.format, strict=self.strict)
        found, lines = told(log, gpus, self.models)
        print(f"{self.file}: {lines[0]}", *lines[1:], sep="\n")
        write_report(self.json, found)
        with results() as write:
            write(self.out, lambda path: write_log(path, log))


def gpus_of(cluster: str | None) -> int | None:
    """GPUs of a cluster; None if none is named."""
    from jaxsched.cluster.presets import get_inventory

    return None if cluster is None else sum(sum(server.groups) for server in get_inventory(cluster).servers)


def told(log: Any, gpus: int | None, models: str | None) -> tuple[dict[str, Any], list[str]]:
    """What a log was understood as: figures, and lines that say them."""
    from jaxsched.cluster.gpu_types import GPU_SPEEDS
    from jaxsched.workload.catalogue import get_catalogue
    from jaxsched.workload.readers.summary import details, headline, understood
    from jaxsched.workload.traces import fill_in

    found = understood(log, fill_in(log, catalogue=get_catalogue(models)), gpus)
    unknown = sorted(set(found["gpu_types"]) - set(GPU_SPEEDS))
    if unknown:
        found["remarks"].append(f"GPU types that only a cluster's gpu_speeds can tell: {', '.join(unknown)}")
    return found, [headline(found), *details(found)]
