"""An API server that stops answering, in two lines of the log however many watches it has."""

import logging
import threading
import time

log = logging.getLogger("jaxsched.kube")

TRIES = 2  # that fail in a row: a watch that was only cut is answered when it is tried again


class Outage:
    """Warns once when tries in a row fail, and says once when all who tried are answered again."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._failed: dict[str, int] = {}  # tries in a row, by who tries
        self._since_s: float | None = None  # it was said
        self._lock = threading.Lock()

    def failed(self, who: str, why: object) -> None:
        """A try got no answer."""
        with self._lock:
            self._failed[who] = self._failed.get(who, 0) + 1
            if self._since_s is None and self._failed[who] >= TRIES:
                self._since_s = time.monotonic()
                log.warning("the API server %s does not answer: %s; nothing is planned until it does", self._host, why)

    def answered(self, who: str) -> None:
        """A try was answered."""
        with self._lock:
            self._failed.pop(who, None)
            if self._since_s is not None and not self._failed:
                log.info("the API server %s answers again after %.0f s", self._host, time.monotonic() - self._since_s)
                self._since_s = None
