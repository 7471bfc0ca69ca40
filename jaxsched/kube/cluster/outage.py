"""An API server that does not answer, or refuses: when that is worth a line in the log, and when it is for good."""

import logging
import threading
import time

log = logging.getLogger("jaxsched.kube")

TRIES = 2  # that fail in a row: a watch that was only cut is answered when it is tried again

# A fresh API server refuses whom it will permit until it has read the roles and accounts: seconds, and more on a large
# cluster or a busy machine. A permission that was really taken away is told early enough a minute later.
REFUSED_S = 60.0


class Outage:
    """Of all watches: warns once when tries in a row fail, and says once when all who tried are answered again."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._failed: dict[str, int] = {}  # tries in a row, by who tries
        self._since_s: float | None = None  # it was said
        self._lock = threading.Lock()

    def record_failure(self, who: str, why: object) -> None:
        """A try got no answer."""
        with self._lock:
            self._failed[who] = self._failed.get(who, 0) + 1
            if self._since_s is None and self._failed[who] >= TRIES:
                self._since_s = time.monotonic()
                log.warning("the API server %s does not answer: %s; nothing is planned until it does", self._host, why)

    def record_answer(self, who: str) -> None:
        """A try was answered."""
        with self._lock:
            self._failed.pop(who, None)
            if self._since_s is not None and not self._failed:
                log.info("the API server %s answers again after %.0f s", self._host, time.monotonic() - self._since_s)
                self._since_s = None


class Refusals:
    """Of one kind of request. Who was never permitted is refused for good at once, others after `REFUSED_S`.

    `denied`: the server's words once it is for good, else "".
    """

    def __init__(self) -> None:
        self.denied = ""
        self._permitted = False
        self._since_s: float | None = None

    def reset(self) -> None:
        """The server has done what was asked."""
        self.denied, self._permitted, self._since_s = "", True, None

    def record(self, words: str) -> bool:
        """The server has refused; whether that is for good."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if not self._permitted or now_s - self._since_s >= REFUSED_S:
            self.denied = words
        return bool(self.denied)
