"""The process of the command line: what it owes to who started it, whatever state its streams and its user are in.

All three streams are there. What cannot be written on standard error is lost, and costs nobody a result. A character
that standard output has no code for is written as `\\u2020`. A stop is one line from the first moment to the last.
"""

import io
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # what the module `typing` takes to import is time in which a stop is a traceback
    from typing import NoReturn

    from _typeshed import ReadableBuffer

INTERRUPTED = 130
STOPPED = (INTERRUPTED, 143)  # and 143, terminated: see `cli.errors`


def run() -> "NoReturn":
    """The entry point."""
    _stop_at_once()
    _open_streams()
    from jaxsched.cli.main import main

    code: str | int | None = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    _stop_at_once()
    if code in STOPPED:  # threads may still compile: waiting would be no stop, and ending Python under them fatal
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _stop_at_once() -> None:
    """Ctrl-C ends the process, where there is nothing to clean up; unless it is ignored, as in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> "NoReturn":
    try:
        os.write(2, b"jaxsched: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


class _Forgiving(io.FileIO):
    """What cannot be written is lost."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """As many bytes as there are."""
        try:
            return super().write(data) or memoryview(data).nbytes
        except OSError:
            return memoryview(data).nbytes


def _open_streams() -> None:
    """Standard streams that are closed become empty, for else the next file that is opened would take their place."""
    closed = [number for number in range(3) if not _is_open(number)]
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    encoding = getattr(sys.stderr, "encoding", "utf-8")
    raw = io.BufferedWriter(_Forgiving(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)
    if 1 in closed:
        print("jaxsched: warning: standard output is closed, what is printed there is lost", file=sys.stderr)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    run()
