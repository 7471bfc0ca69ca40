"""One look at a live cluster: everything is read once, nothing is written."""

import time

from jaxsched.errors import UserError
from jaxsched.kube.cluster.api import ApiClient
from jaxsched.kube.cluster.informers import Informers
from jaxsched.kube.cluster.permissions import check_permissions, needed
from jaxsched.kube.read.snapshot import Snapshot

IDLE_S = 60.0  # a watch that says nothing for longer is opened anew
PATIENCE_S = 120.0


def live_snapshot(api: ApiClient) -> Snapshot:
    """The cluster now. UserError if something may not be read, or is not within `PATIENCE_S`."""
    check_permissions(api, needed(writes=False, lease=False), "", "")
    informers = Informers(api, lambda: None, lambda kind, what, raw: None, lambda name, cause: None, IDLE_S)
    until_s = time.monotonic() + PATIENCE_S

    def wait() -> None:
        if time.monotonic() > until_s:
            raise UserError(f"the cluster could not be read within {PATIENCE_S:.0f} s")

    try:
        informers.start(wait)
        return informers.snapshot(informers.pods())
    finally:
        informers.stop()
