"""`jaxsched sweep`, `table` and `plot`: many training runs from one file, their table, and their figures."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxsched.cli.options import ExecutorOptions, Output, optional

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxsched.sweeps.plan import Program
    from jaxsched.sweeps.plan import Sweep as Plan

HELP = """Train every point of a sweep, measure it, and print the table.

The file names a configuration (base), what to change in it (axes: a list of values per dotted key; variants: named
changes), the seeds, how policies are measured (evaluate), and the folder (out). Every finished point is a row of
OUT/rows.jsonl and is not run again; a sweep that was stopped, by any means, goes on with the same command. Points that
differ only in numbers share one compiled program; `runs_at_once` in the file says how many of them are trained in it at
once (default: all on an accelerator, one on a CPU). `env.knows`, `env.preemption` and `env.failures` are those of
`jaxsched train`; policies are measured in the world that they were trained in, and rules that it refuses are refused
before training.

`--on` sends the runs to other machines: rows come back into the same table, and what a lost worker had begun is done
again. Machines that see OUT under the same path go on with interrupted runs; others begin them anew.

Examples:
  jaxsched sweep configs/sweeps/ablations.yaml --plan
  jaxsched sweep configs/sweeps/ablations.yaml
  jaxsched sweep examples/sweep.yaml --on ray --ask num_cpus=2
  jaxsched sweep examples/sweep.yaml --on slurm --ask timeout_min=240 mem_gb=16 slurm_partition=gpu
  jaxsched sweep configs/sweeps/ablations.yaml --table --markdown table.md
"""


JOBS_FOLDER = "jobs"  # of Slurm, in the sweep's


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep(ExecutorOptions):
    """Train every point of a sweep, measure it, and print the table."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The sweep, YAML."""
    plan: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only say which programs there are, with their points."""
    memory: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """With --plan: also what memory each program needs (a second each)."""
    table: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only print the table of the points that are finished."""
    out: Annotated[Path | None, optional("DIR")] = None
    """Folder of rows and policies, instead of the file's."""
    markdown: Output = None
    """Also write the table as Markdown."""

    def run(self) -> None:
        """Plan, train and measure, or print. UserError on any mistake."""
        from jaxsched.cli.output import results, text
        from jaxsched.errors import UserError
        from jaxsched.io.files import check_folder, check_outputs
        from jaxsched.sweeps import plan as sweep_plan
        from jaxsched.sweeps import tables
        from jaxsched.sweeps.plan import load_sweep

        check_outputs({"--markdown": self.markdown}, [self.file])
        if self.memory and not self.plan:
            raise UserError("--memory: is for --plan, give that, too")
        if self.plan and self.table:
            raise UserError("--plan, --table: give one of them")
        if (self.plan or self.table) and (self.on != "local" or self.ask):
            raise UserError("--on, --ask: say where points run, and --plan and --table run none; leave them out")
        plan = load_sweep(self.file)
        if self.out is not None:
            plan = dataclasses.replace(plan, out=self.out)
        if self.plan:
            for line in sweep_plan.plan(plan, self._memory()):
                print(line, flush=True)
            return
        if not self.table:
            check_folder(plan.out, f"{self.file}: out" if self.out is None else "--out")
            try:
                self._sweep(plan)
            except KeyboardInterrupt as stop:
                raise type(stop)("go on with the same command") from None
        rows = sweep_plan.rows_of(plan)
        print(f"{len(rows)} of {len(plan.points)} points are finished, rows in {plan.out / sweep_plan.ROWS_FILE}")
        if rows:
            with results() as write:
                write(self.markdown, text(tables.seeds_markdown(rows)))
                print(tables.seeds_text(rows))
        elif self.markdown is not None:
            raise UserError(f"{self.markdown}: is not written, no point is finished")

    def _memory(self) -> "Callable[[Program], float] | None":
        """What says what a program needs, where that is asked for: all that training needs, seconds to import."""
        if not self.memory:
            return None
        from jaxsched.sweeps.shared_programs import memory_mib

        return memory_mib

    def _sweep(self, plan: "Plan") -> None:
        """Trains and measures what has no row, with progress on stderr."""
        from jaxsched.cli.output import Display, OverAll
        from jaxsched.executors import choose_executor
        from jaxsched.learning.devices import provide_devices
        from jaxsched.sweeps import plan as sweep_plan
        from jaxsched.sweeps import run as sweep
        from jaxsched.sweeps.shared_programs import check_memory

        if plan.runs_at_once > 1:
            provide_devices()
        with choose_executor(self.on, self.ask, plan.out / JOBS_FOLDER) as executor:
            check_memory(plan, executor.memory_bytes())
            with Display([], 0, "chunks") as display:
                report = display.more if self.on == "local" else OverAll(display, sweep_plan.chunks_left(plan)).more
                sweep.run(plan, report, executor)


TABLE_HELP = """Rank the finished points of a sweep, with intervals over seeds.

FILE is a sweep (.yaml), its rows.jsonl, or what --rows wrote. Nothing is run. Points are compared with the best one
seed by seed. --aggregate takes all tests together: interquartile means, and how likely a point is better than another.

Examples:
  jaxsched table examples/sweep.yaml
  jaxsched table runs/sweeps/example/rows.jsonl --by "validation: JCT (s)" --markdown table.md
  jaxsched table examples/sweep.yaml --rows rows.parquet
  jaxsched table examples/sweep.yaml --aggregate --against untrained
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rank the finished points of a sweep, with intervals over seeds."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A sweep (.yaml), its rows.jsonl, or a .parquet of these."""
    by: Annotated[str | None, optional("FIGURE")] = None
    """The figure to rank by (default: the ratio on the first test)."""
    markdown: Output = None
    """Also write the table as Markdown."""
    rows: Output = None
    """Also write a line per point with all figures (.jsonl or .parquet)."""
    aggregate: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """All tests together, instead of a ranking by one figure."""
    against: Annotated[str | None, optional("POINT")] = None
    """With --aggregate: the point that all others are compared with (default: untrained, or the last of the table)."""

    def run(self) -> None:
        """Read, rank, print, write. UserError on any mistake."""
        from jaxsched.cli.output import results, text
        from jaxsched.errors import UserError
        from jaxsched.io.files import check_outputs
        from jaxsched.sweeps import tables
        from jaxsched.sweeps.records import check_records_file, read_records, write_records

        check_outputs({"--markdown": self.markdown, "--rows": self.rows}, [self.file])
        check_records_file(self.rows)
        records = read_records(self.file)
        if self.against is not None and not self.aggregate:
            raise UserError("--against: is for --aggregate, give that, too")
        if self.aggregate and self.by is not None:
            raise UserError("--by: is for a ranking; leave it or --aggregate out")
        if self.aggregate:
            table = [made(records, self.against) for made in (tables.aggregate_text, tables.aggregate_markdown)]
        else:
            figure = tables.figure_named(records, self.by)
            table = [made(records, figure) for made in (tables.ranking_text, tables.ranking_markdown)]
        with results() as write:
            write(self.markdown, text(table[1]))
            write(self.rows, lambda path: write_records(path, records))
            print(table[0])


PLOT_HELP = """Draw the finished points of a sweep, or the curves of trainings.

Of folders of `jaxsched train` validation is drawn over decisions, from the untrained policy on, a line each.

Else FILE is a sweep (.yaml), its rows.jsonl, or what `jaxsched table --rows` wrote. Every point is drawn with its 95%
interval over seeds: ranked, or with --x along an axis of numbers, a line for each value of the others. --curves draws
the validation runs of the training instead. Needs the extra viz.

Examples:
  jaxsched plot examples/sweep.yaml --out ranked.png
  jaxsched plot runs/sweeps/example/rows.jsonl --x network.width --out width.svg
  jaxsched plot examples/sweep.yaml --curves --out curves.pdf
  jaxsched plot runs/one runs/other --out trainings.png
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw the finished points of a sweep, or the curves of trainings."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE|RUN...")]
    """A sweep (.yaml), its rows.jsonl, or a .parquet of these; or folders of trainings."""
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
        from jaxsched.sweeps.records import read_records
        from jaxsched.sweeps.tables import are_runs, curves, curves_of_runs, figure_named, group_along_axis, rank_groups

        if not self.files:
            raise UserError("plot: give a sweep, or folders of trainings")
        check_outputs({"--out": self.out}, self.files)
        check_figure(self.out)
        if are_runs(self.files):
            if self.curves or self.x is not None or self.by is not None:
                raise UserError("--curves, --x, --by: are for sweeps; of trainings the curves are drawn")
            series = curves_of_runs(self.files)
            with results() as write:
                write(self.out, lambda path: lines(series, ("decisions", "validation JCT (s)"), path))
            return
        if self.curves and (self.x is not None or self.by is not None):
            raise UserError("--curves: draws validation over chunks; leave --x and --by out")
        records = read_records(self.files[0])
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
