"""Mistakes become one line on stderr and exit code 2; anything else keeps its traceback."""

import contextlib
import errno
import io
import math
import os
import re
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from jaxsched.errors import DoubtfulFile, Mistakes, Slower, UserError

EXIT_MISTAKE = 2
EXIT_INTERRUPTED, EXIT_PIPE, EXIT_TERMINATED = 130, 141, 143  # as a shell has them: 128 + the signal's number
AGAIN_S = 0.05  # after which a stop that was ignored, or came at the wrong moment, comes once more
IMPORTS_S = 10.0  # for which a stop waits for modules that are being imported
# What the system says when there is no room, no right, or no such place: nothing that a traceback could explain.
_SYSTEM = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EIO,
    errno.EFBIG,
)
_IMPORTING = "<frozen importlib._bootstrap>"  # the file of which the frames of an import are
_FRAME = "│|╭╮╰╯+ "
_RULE = re.compile("[─-]{4}")  # tyro draws with ASCII where the output knows nothing else
_WRONG_VALUE = re.compile(
    r"(?P<option>--\S+): no type matching (?P<kind>.+?) could be instantiated from \[(?P<value>.*?)\]"
)
T = TypeVar("T")


def fail(message: object) -> NoReturn:
    """Prints `jaxsched: error: ...` and exits with code 2."""
    tell(message)
    sys.exit(EXIT_MISTAKE)


def tell(message: object) -> None:
    """Prints `jaxsched: error: ...`; several mistakes of one file on a line each."""
    lines = [f"{message.head}:", *message.first] if isinstance(message, Mistakes) else [str(message)]
    first, *more = (" ".join(line.split()) for line in lines)
    print("\n  ".join([f"jaxsched: error: {first}", *more]), file=sys.stderr)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: to be handled as Ctrl-C is."""


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """Turns a `UserError` of the block into its one line; ends quietly if the reader, like `head`, has had enough.

    SIGTERM ends the block as Ctrl-C does, with one line; a second one ends the process at once. Warnings about the
    user's files are one line each, too.
    """
    came: list[int] = []
    try:
        with _stoppable(came), _heard(), _plain_warnings():
            try:
                yield
            finally:
                sys.stdout.flush()
    except KeyboardInterrupt as stop:
        _stopped(signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT, *stop.args)
    except Exception as error:
        if came:  # what a stop has become on its way, for instance of an import
            _stopped(came[0], *([error] if isinstance(error, UserError) else []))
        _tell_of(error)


def _stopped(number: int, *more: object) -> NoReturn:
    _mute()
    terminated = number == signal.SIGTERM
    print("; ".join(["jaxsched: " + ("terminated" if terminated else "interrupted"), *map(str, more)]), file=sys.stderr)
    sys.exit(EXIT_TERMINATED if terminated else EXIT_INTERRUPTED)


def _tell_of(error: Exception) -> NoReturn:
    """One line for a mistake and what the system does not let us do; anything else is raised again."""
    try:
        raise error
    except UserError:
        fail(error)
    except BrokenPipeError:
        _mute()
        sys.exit(EXIT_PIPE)
    except OSError as error:
        if error.errno not in _SYSTEM:
            raise
        _mute()
        fail(f"{error.filename or 'standard output'}: {error.strerror}")


def _mute() -> None:
    """Python flushes once more when it ends: into nothing, if what there is cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(number: int, frame: object) -> NoReturn:
    signal.signal(number, lambda *_: os._exit(EXIT_TERMINATED))
    raise Terminated


@contextlib.contextmanager
def _stoppable(came: list[int]) -> Iterator[None]:
    """A stop ends the block, and its signal's number stands in `came`. Ctrl-C that is ignored stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    late_s = math.inf

    def stop(number: int, frame: types.FrameType | None) -> None:
        nonlocal late_s
        late_s = min(late_s, time.monotonic() + IMPORTS_S)
        if _imports(frame) and time.monotonic() < late_s:
            _once_more(number)
            return
        came.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        _terminate(number, frame)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _imports(frame: types.FrameType | None) -> bool:
    """A module is being imported. If it is JAX's, to stop it would end in a segmentation fault."""
    while frame is not None and frame.f_code.co_filename != _IMPORTING:
        frame = frame.f_back
    return frame is not None


def _once_more(number: int) -> None:
    """The signal comes again in a moment."""
    again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


@contextlib.contextmanager
def _heard() -> Iterator[None]:
    """A stop is heard where Python ignores exceptions, too: in callbacks of the garbage collector, such as JAX's."""
    usual = sys.unraisablehook

    def hook(what: "sys.UnraisableHookArgs") -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            return usual(what)
        number = signal.SIGTERM if issubclass(what.exc_type, Terminated) else signal.SIGINT
        if number == signal.SIGTERM:
            signal.signal(number, _terminate)
        _once_more(number)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], *more: Any) -> None:
            if issubclass(category, (DoubtfulFile, Slower)):
                print(f"jaxsched: warning: {message}", file=sys.stderr)
            else:
                show(message, category, *more)

        warnings.showwarning = shown  # pyright: ignore[reportAttributeAccessIssue]
        warnings.simplefilter("once", DoubtfulFile)
        warnings.simplefilter("once", Slower)
        yield


def parse_command(parse: Callable[[], T]) -> T:
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
