"""Mistakes become one line on stderr and exit code 2; anything else keeps its traceback."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from jaxsched.errors import UserError

EXIT_MISTAKE, EXIT_PIPE = 2, 141  # the latter as a shell has it: 128 + SIGPIPE
_FRAME = "│|╭╮╰╯+ "
_RULE = re.compile("[─-]{4}")  # tyro draws with ASCII where the output knows nothing else
_WRONG_VALUE = re.compile(
    r"(?P<option>--\S+): no type matching (?P<kind>.+?) could be instantiated from \[(?P<value>.*?)\]"
)
T = TypeVar("T")


def fail(message: object) -> NoReturn:
    """Prints `jaxsched: error: ...` and exits with code 2."""
    print(f"jaxsched: error: {' '.join(str(message).split())}", file=sys.stderr)
    sys.exit(EXIT_MISTAKE)


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """Turns a `UserError` of the block into its one line; ends quietly if the reader, like `head`, has had enough."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except UserError as error:
        fail(error)
    except KeyboardInterrupt:
        print("jaxsched: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        sys.exit(EXIT_PIPE)


def parsed(parse: Callable[[], T]) -> T:
    """What `parse` returns; what tyro has to say about a wrong command line, a box of text, becomes one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse()
    except SystemExit as end:
        if end.code in (0, None):
            raise
        fail(first_paragraph(said.getvalue()) or "the command line could not be understood; see jaxsched --help")


def first_paragraph(box: str) -> str:
    """The text of a tyro box up to its first rule and, if it has one, the option that it suggests."""
    lines = [line.strip(_FRAME) for line in box.splitlines()]
    rules = [i for i, line in enumerate(box.splitlines()) if _RULE.search(line)]
    inner = [i for i in rules if i > rules[0]] if rules else []
    message = " ".join(line for line in lines[(rules[0] + 1 if rules else 0) : (inner[0] if inner else None)] if line)
    message = message.replace("Error parsing --", "--")
    if wrong := _WRONG_VALUE.match(message):
        return f"{wrong['option']}: {wrong['value']} should be {wrong['kind'].removeprefix('{None}|')}"
    for i, line in enumerate(lines[:-1]):
        if line.startswith("Perhaps you meant"):
            return f"{message}; perhaps you meant {lines[i + 1]}"
        if line.startswith("Available subcommands"):
            return f"{message}; available commands{line.removeprefix('Available subcommands')}"
    return message
