"""The API server's clock, told from the header Date of its answers: creation times, and so ages, are by that clock.

This machine's clock may be hours off. Between answers only time that has passed counts (`time.monotonic`).
"""

import email.utils
import threading
import time

RESOLUTION_S = 1.0  # of the header: the server's clock stood between Date and this much later


class ServerClock:
    """Bounds on the server's time less our monotonic one, which every answer narrows; safe to use from threads."""

    def __init__(self) -> None:
        self._bounds: tuple[float, float] | None = None
        self._lock = threading.Lock()

    def heard(self, date: str | None, sent_s: float, received_s: float) -> None:
        """An answer with this header came `received_s` to a request of `sent_s` (monotonic)."""
        try:
            stamp = email.utils.parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        low, high = stamp - received_s, stamp + RESOLUTION_S - sent_s
        with self._lock:
            if self._bounds is not None:
                narrow = max(low, self._bounds[0]), min(high, self._bounds[1])
                if narrow[0] <= narrow[1]:  # else one of the clocks was set, ran fast, or is another server's
                    low, high = narrow
            self._bounds = low, high

    def now_s(self) -> float:
        """Seconds since 1970 on the server; on this machine while no server has said."""
        bounds = self._bounds
        return time.time() if bounds is None else time.monotonic() + sum(bounds) / 2
