"""`jaxsched reproduce-table`: a published table, played again, with ours beside theirs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from jaxsched.cli.options import Output

if TYPE_CHECKING:
    from jaxsched.adaptive.published import JobTime, Line

HELP = """Play a published table again: ours, theirs, and the difference.

pollux  completion times by load, period and interference (Qiao et al., OSDI 2021). DIR is a folder with the authors'
        profiles/APP, workloads-LOAD and results_per_job.csv (petuum/adaptdl, branch osdi21-artifact). All workloads
        of DIR are played. Means are over those that results_per_job.csv has.

Examples:
  jaxsched reproduce-table pollux --data pollux
  jaxsched reproduce-table pollux --data pollux --jobs-out jobs.csv   # experiment,run,workload,job,jct_s
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReproduceTable:
    """Play a published table again: ours, theirs, and the difference."""

    name: Annotated[Literal["pollux"], tyro.conf.Positional]
    """The table."""
    data: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """What the authors published."""
    jobs_out: Output = None
    """Write the completion time of every job (.csv)."""

    def run(self) -> None:
        """Play, print, write. UserError on any mistake."""
        from jaxsched.adaptive.published import play_pollux
        from jaxsched.cli.output import results
        from jaxsched.io.files import check_outputs
        from jaxsched.machine import compute_on_one_thread

        check_outputs({"--jobs-out": self.jobs_out}, [str(self.data)])
        compute_on_one_thread()
        print(HEADER, flush=True)
        times = play_pollux(self.data, lambda line: print(as_text(line), flush=True))
        with results() as write:
            write(self.jobs_out, lambda path: path.write_text(as_csv(times), encoding="utf-8"))


HEADER = (
    f"{'experiment':16} {'run':14} {'ours, s':>10} {'published, s':>13} {'difference':>11} {'jobs to the second':>19}"
)


def as_text(line: "Line") -> str:
    """A line of the table."""
    known = line.jobs > 0
    published = (
        f"{line.published_s:13.1f} {100 * (line.ours_s / line.published_s - 1):+10.2f}%" if known else f"{'-':>25}"
    )
    equal = f"{line.equal} of {line.jobs}" if known else "-"
    return f"{line.case.experiment:16} {line.case.run:14} {line.ours_s:10.1f} {published} {equal:>19}"


def as_csv(times: "list[JobTime]") -> str:
    """One line per job."""
    rows = [f"{case.experiment},{case.run},{workload},{job},{jct_s:g}" for case, workload, job, jct_s in times]
    return "\n".join(["experiment,run,workload,job,jct_s", *rows, ""])
