"""A plugin for pytest: the loop is played as Python, so that a change of it costs no compiling."""

from typing import Any

from jaxsched.event_loop._kernel.jit import with_rows
from jaxsched.event_loop.run import Run
from jaxsched.policies.policy import Policy

_init, _restart = Run.__init__, Run.restart


def _in_python(self: Run, *args: Any, **more: Any) -> None:
    _init(self, *args, **more | {"in_python": True})


def _again(self: Run, policy: Policy | None = None) -> None:
    _restart(self, policy)
    self._rows = with_rows(self.world), with_rows(self.tables)


Run.__init__, Run.restart = _in_python, _again
