"""The one exception that stands for a user's mistake."""

from collections.abc import Sequence


class UserError(Exception):
    """A mistake in what the user handed in: the message says what is wrong, where, and what would be right.

    The command line prints it as one line and exits with code 2.
    """


class Mistakes(UserError):
    """Several mistakes in one file. Its message is one line; the command line prints one line for each.

    Args:
        path: the file.
        count: how many there are.
        first: what is said of the first ones.
    """

    def __init__(self, path: str, count: int, first: Sequence[str]) -> None:
        told = f", the first {len(first)} of them" if count > len(first) else ""
        self.head, self.first = f"{path}: {count:,} mistakes{told}", list(first)
        super().__init__(f"{self.head}: {'; '.join(first)}")


class DoubtfulFile(UserWarning):
    """A file that can be read, and may not be what the user means. The command line prints it as one line."""


class NotRead(DoubtfulFile):
    """Columns of a file that are there and have no effect."""


class Slower(UserWarning):
    """What is asked for is done, but in a slow way, since something is not installed."""
