"""`jaxsched report`: saved results as one page."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

HELP = """Make one page of saved results, side by side.

A result is what `jaxsched evaluate --json FILE` wrote. With --keep-runs there it also holds every job: then the page
shows distributions, queues, the cluster over time, and of every job what its completion time is made of. Kept runs of
several results must be of the same jobs on the same cluster.

Examples:
  jaxsched evaluate --policies pack greedy-wait --num-jobs 300 --seeds 1 --json known.json --keep-runs
  jaxsched evaluate --policies pack greedy-wait --num-jobs 300 --seeds 1 --knows estimates --duration-error 1 \
    --json noisy.json --keep-runs
  jaxsched report known.json noisy.json -o report.html
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Make one page of saved results, side by side."""

    results: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RESULT.json ...")]
    """What `jaxsched evaluate --json` wrote."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=["-o"])] = Path("report.html")
    """The page (.html)."""

    def run(self) -> None:
        """Read, join, write. UserError on any mistake."""
        from jaxsched.cli.output import results, text
        from jaxsched.errors import UserError
        from jaxsched.evaluation.saved import read_result, saved_page
        from jaxsched.io.files import check_ending, check_outputs

        if not self.results:
            raise UserError("report: name at least one result, see `jaxsched evaluate --json`")
        check_outputs({"--out": self.out}, self.results)
        check_ending(self.out, ".html", option="--out")
        names = [path.stem for path in self.results]
        if len(set(names)) < len(names):
            names = [str(path) for path in self.results]
        page = saved_page({name: read_result(path) for name, path in zip(names, self.results)})
        with results() as write:
            write(self.out, text(page))
