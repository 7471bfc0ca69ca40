"""What the commands on measurements share."""

from pathlib import Path
from typing import Annotated, Any

import tyro

Data = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]


def check_report(path: Path | None, *inputs: str | Path, **others: Path | None) -> None:
    """UserError if a report is asked for (`--json`) that cannot be written; told before a long computation.

    `inputs` are what the command reads, `others` the other files that it writes, by option.
    """
    from jaxsched.io.files import check_outputs

    check_outputs({"--json": path} | {f"--{name}": other for name, other in others.items()}, inputs)


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """The report as JSON, if a file was asked for."""
    import json

    from jaxsched.cli.output import results, text

    with results() as write:
        write(path, text(json.dumps(report, indent=1) + "\n"))
