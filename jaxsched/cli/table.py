"""`jaxsched table`: a sweep's rows, ranked."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from jaxsched.cli.options import Output, optional

HELP = """Rank the finished points of a sweep, with intervals over seeds.

FILE is a sweep (.yaml), its rows.jsonl, or what --rows wrote. Nothing is run. Points are compared with the best one
seed by seed.

Examples:
  jaxsched table examples/sweep.yaml
  jaxsched table runs/sweeps/example/rows.jsonl --by "validation: JCT (s)" --markdown table.md
  jaxsched table examples/sweep.yaml --rows rows.parquet
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

    def run(self) -> None:
        """Read, rank, print, write. UserError on any mistake."""
        from jaxsched.cli.output import results, text
        from jaxsched.io.files import check_outputs
        from jaxsched.sweeps import ranking as sweep_ranking
        from jaxsched.sweeps.records import check_records_file, read_records, write_records

        check_outputs({"--markdown": self.markdown, "--rows": self.rows}, [self.file])
        check_records_file(self.rows)
        records = read_records(self.file)
        figure = sweep_ranking.figure_named(records, self.by)
        with results() as write:
            write(self.markdown, text(sweep_ranking.markdown(records, figure)))
            write(self.rows, lambda path: write_records(path, records))
            print(sweep_ranking.plain_text(records, figure))
