"""`jaxsched sweep`: many training runs from one file, and their table."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from jaxsched.cli.options import Output

HELP = """Train every point of a sweep, measure it, and print the table.

The file names a configuration (base), what to change in it (axes: a list of values per dotted key; variants: named
changes), the seeds, how policies are measured (evaluate), and the folder (out). Every finished point is a row of
OUT/rows.jsonl and is not run again; a sweep that was stopped, by any means, goes on with the same command. Points that
differ only in numbers share one compiled program; `runs_at_once` in the file says how many of them are trained in it at
once (default: all on an accelerator, one on a CPU). `env.knows`, `env.preemption` and `env.failures` are those of
`jaxsched train`; policies are measured in the world that they were trained in, and rules that it refuses are refused
before training.

Examples:
  jaxsched sweep configs/sweeps/ablations.yaml --plan
  jaxsched sweep configs/sweeps/ablations.yaml
  jaxsched sweep configs/sweeps/ablations.yaml --table --markdown table.md
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Train every point of a sweep, measure it, and print the table."""

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The sweep, YAML."""
    plan: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only say which programs there are, with their points."""
    memory: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """With --plan: also what memory each program needs (a second each)."""
    table: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only print the table of the points that are finished."""
    markdown: Output = None
    """Also write the table as Markdown."""

    def run(self) -> None:
        """Plan, train and measure, or print. UserError on any mistake."""
        from jaxsched.cli.output import results, text
        from jaxsched.cli.progress import Display
        from jaxsched.files import check_folder, check_outputs
        from jaxsched.training import sweep_plan, sweep_table
        from jaxsched.training.sweep_file import load_sweep

        check_outputs({"--markdown": self.markdown}, [self.file])
        plan = load_sweep(self.file)
        if self.plan:
            for line in sweep_plan.plan(plan, memory=self.memory):
                print(line, flush=True)
            return
        if not self.table:
            from jaxsched.training import sweep

            check_folder(plan.out, f"{self.file}: out")
            with Display([], 0, "chunks") as display:
                sweep.run(plan, lambda name, done, chunks, passed_s: display.more(name, done, chunks, passed_s))
        rows = sweep_plan.rows_of(plan)
        print(f"{len(rows)} of {len(plan.points)} points are finished, rows in {plan.out / sweep_plan.ROWS_FILE}")
        if rows:
            with results() as write:
                write(self.markdown, text(sweep_table.markdown(rows)))
                print(sweep_table.plain_text(rows))
