"""Tasks in this process, one after the other."""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxsched.executors.executor import Report, Task
from jaxsched.machine import memory_bytes


class LocalExecutor:
    """See `Executor`. Nothing is pickled, and no worker can be lost."""

    def memory_bytes(self) -> int | None:
        """Of the accelerator, else of this machine."""
        import jax

        if jax.default_backend() == "cpu":
            return memory_bytes()
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")

    def run(self, common: Any, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """In the order of the tasks."""
        for number, task in enumerate(tasks):

            def tell(value: Any, number: int = number) -> None:
                if report is not None:
                    report(number, value)

            yield number, task.work(common, task.argument, tell)
