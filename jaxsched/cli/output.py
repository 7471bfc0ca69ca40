"""What commands print and write of a comparison."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from jaxsched.errors import UserError
from jaxsched.io.files import save_result

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


Writer = Callable[[Path | None, Callable[[Path], object]], None]


@contextlib.contextmanager
def results() -> Iterator[Writer]:
    """Hands out `write(path, how)`, for what a command has worked out: nothing that can be kept is lost.

    `path` None: was not asked for. What was written is said at the end of the block. If one file cannot be written the
    others still are, and UserError at the end says where each one is kept.
    """
    written: list[Path] = []
    failed: list[str] = []

    def write(path: Path | None, how: Callable[[Path], object]) -> None:
        if path is None:
            return
        try:
            save_result(path, how)
            written.append(path)
        except UserError as error:
            failed.append(str(error))

    try:
        yield write
    finally:
        try:
            for path in written:
                print(f"wrote {path}")
        finally:
            if failed:
                raise UserError("; ".join(failed))


def text(content: str) -> Callable[[Path], object]:
    """How to write a text."""
    return lambda path: path.write_text(content, encoding="utf-8")
