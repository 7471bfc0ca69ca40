"""What the commands on measurements share."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxsched.errors import UserError

Data = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")]


def check_folder(path: Path) -> None:
    """UserError if `path` cannot become a folder; told before a long fit."""
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path}: is a file, should be a folder")
    if not path.parent.is_dir():
        raise UserError(f"--out {path}: the folder {path.parent} does not exist, make it first or name another one")


def check_report(path: Path | None) -> None:
    """UserError if a report is asked for (`--json`) that cannot be written; told before a long computation."""
    from jaxsched.files import check_writable

    if path is not None:
        check_writable(path, "--json")


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """The report as JSON, if a file was asked for."""
    import json

    from jaxsched.files import write_text

    if path is not None:
        write_text(path, json.dumps(report, indent=1) + "\n")
        print(f"wrote {path}")
