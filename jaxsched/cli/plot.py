"""`jaxsched plot`: figures of a sweep's rows."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from jaxsched.cli.options import optional

HELP = """Draw the finished points of a sweep.

FILE is a sweep (.yaml), its rows.jsonl, or what `jaxsched table --rows` wrote. Every point is drawn with its 95%
interval over seeds: ranked, or with --x along an axis of numbers, a line for each value of the others. --curves draws
the validation runs of the training instead. Needs the extra viz.

Examples:
  jaxsched plot examples/sweep.yaml --out ranked.png
  jaxsched plot runs/sweeps/example/rows.jsonl --x network.width --out width.svg
  jaxsched plot examples/sweep.yaml --curves --out curves.pdf
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw the finished points of a sweep."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A sweep (.yaml), its rows.jsonl, or a .parquet of these."""
    out: Annotated[Path, tyro.conf.arg(metavar="FIGURE", aliases=["-o"])] = Path("sweep.png")
    """The figure (.png, .pdf or .svg)."""
    by: Annotated[str | None, optional("FIGURE")] = None
    """The figure to draw, as in `jaxsched table` (default: the ratio on the first test)."""
    x: Annotated[str | None, optional("AXIS")] = None
    """An axis of the sweep, all of whose values are numbers."""
    curves: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Draw validation JCTs over chunks of training."""

    def run(self) -> None:
        """Read, draw, write. UserError on any mistake."""
        from jaxsched.cli.output import results
        from jaxsched.errors import UserError
        from jaxsched.evaluation.figures import check_figure, intervals, lines
        from jaxsched.io.files import check_outputs
        from jaxsched.sweeps.ranking import curves, figure_named, group_along_axis, rank_groups
        from jaxsched.sweeps.records import read_records

        check_outputs({"--out": self.out}, [self.file])
        check_figure(self.out)
        if self.curves and (self.x is not None or self.by is not None):
            raise UserError("--curves: draws validation over chunks; leave --x and --by out")
        records = read_records(self.file)
        figure = figure_named(records, self.by)
        with results() as write:
            if self.curves:
                series = curves(records)
                write(self.out, lambda path: lines(series, ("chunk", "validation JCT (s)"), path))
            elif self.x is not None:
                name, series = self.x, group_along_axis(rank_groups(records, figure), self.x)
                write(self.out, lambda path: lines(series, (name, figure), path))
            else:
                places = [(place.group, place.mean, place.interval) for place in rank_groups(records, figure)]
                write(self.out, lambda path: intervals(places, figure, path))
