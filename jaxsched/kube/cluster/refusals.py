"""Whether a 401 or 403 is to be believed: an API server that has just started gives both for a while."""

import time

# A fresh API server refuses whom it will permit until it has read the roles and accounts: seconds, and more on a large
# cluster or a busy machine. A permission that was really taken away is told early enough a minute later.
REFUSED_S = 60.0


class Refusals:
    """Of one kind of request. Who was never permitted is refused for good at once, others after `REFUSED_S`.

    `denied`: the server's words once it is for good, else "".
    """

    def __init__(self) -> None:
        self.denied = ""
        self._permitted = False
        self._since_s: float | None = None

    def permitted(self) -> None:
        """The server has done what was asked."""
        self.denied, self._permitted, self._since_s = "", True, None

    def refused(self, words: str) -> bool:
        """The server has refused; whether that is for good."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if not self._permitted or now_s - self._since_s >= REFUSED_S:
            self.denied = words
        return bool(self.denied)
