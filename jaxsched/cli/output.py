"""What commands print and write of a comparison."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from jaxsched.evaluation.compare import Comparison


def show(comparison: "Comparison") -> None:
    """The table and its legend on stdout; drawn with lines where a terminal is wide enough for them."""
    from jaxsched.evaluation import tables

    console = Console()
    text = tables.plain_text(comparison)
    if console.is_terminal and console.width > 1.1 * max(map(len, text.splitlines())):
        console.print(tables.rich_table(comparison))
    else:
        print(text)
    for line in tables.legend(comparison):
        print(line)


def write_json(comparison: "Comparison", path: Path | None) -> None:
    """The comparison as JSON, if a file was asked for."""
    from jaxsched.files import write_text

    if path is not None:
        write_text(path, comparison.dumps())
        print(f"wrote {path}")
