"""Preemptive rules as Muri's public simulator has them (Rivendile/Muri, `simulator/run_sim.py`), written from reading.

At every arrival, every end and every time a job reaches the limit of its queue it takes all jobs in the order of the
rule, and those run whose GPUs, as a number, are still free; the others do not. Nothing is kept from before, jobs may
move at no cost, and GPUs are counted, not placed. Left out is what it calls overhead: it takes 4 to 46 s from every
running job at every event of any job, whether anything changes for it or not.
"""

import numpy as np
from numpy.typing import NDArray

FIFO, SRTF, SRSF, LAS = "fifo", "srtf", "srsf", "las"
_DONE_S = 1e-6


class _Queues:
    """Jobs by priority. A job falls to the next queue once its GPU time has reached the limit of its own."""

    def __init__(self, jobs: int, limits: tuple[float, ...], by_submission: bool) -> None:
        self.limits, self.by_submission = limits, by_submission
        self.queue_of = np.zeros(jobs, int)
        self.queues: list[list[int]] = [[] for _ in range(len(limits) + 1)]

    def move(self, job: int, to: int) -> None:
        self.queues[self.queue_of[job]].remove(job)
        self.queue_of[job] = to
        self.queues[to].append(job)

    def limit(self, job: int) -> float:
        return self.limits[self.queue_of[job]] if self.queue_of[job] < len(self.limits) else np.inf

    def settle(self, running: set[int]) -> None:
        """Those that run come first in their queue."""
        for queue in self.queues:
            queue.sort(key=lambda job: (job not in running, job if self.by_submission else 0))  # stable


def finish_times(
    submit_s: NDArray[np.float64],
    duration_s: NDArray[np.float64],
    gpus: NDArray[np.int32],
    total: int,
    rule: str,
    limits: tuple[float, ...] = (),
    by_submission: bool = False,
) -> NDArray[np.float64]:
    """When each job ends on a cluster of `total` GPUs.

    Args: `limits` of the queues of `las` in GPU-seconds; with `by_submission` jobs wait in these in the order in which
    they were submitted, as here, and not in that in which they came to wait.
    """
    count = len(submit_s)
    left_s, ran_s, finish_s = duration_s.astype(float), np.zeros(count), np.full(count, np.nan)
    to_come, alive, running = list(np.argsort(submit_s, kind="stable")), [], set[int]()
    queues, now_s = _Queues(count, limits, by_submission), 0.0
    while to_come or alive:
        ends = [now_s + left_s[j] for j in running]
        falls = [now_s + max(queues.limit(j) / gpus[j] - ran_s[j], 0.0) for j in running] if rule == LAS else []
        next_s = min([submit_s[j] for j in to_come[:1]] + ends + falls)
        for j in running:
            left_s[j] -= next_s - now_s
            ran_s[j] += next_s - now_s
        now_s = next_s
        for j in [j for j in running if left_s[j] <= _DONE_S]:
            finish_s[j] = now_s
            running.remove(j)
            alive.remove(j)
            queues.queues[queues.queue_of[j]].remove(j)
        while to_come and submit_s[to_come[0]] <= now_s:
            alive.append(to_come.pop(0))
            queues.queues[0].append(alive[-1])
        for j in [j for j in running if ran_s[j] * gpus[j] >= queues.limit(j) - _DONE_S]:
            queues.move(j, queues.queue_of[j] + 1)
        running = _chosen(rule, alive, running, queues, left_s, gpus, total)
        queues.settle(running)
    return finish_s


def _chosen(
    rule: str,
    alive: list[int],
    running: set[int],
    queues: _Queues,
    left_s: NDArray[np.float64],
    gpus: NDArray[np.int32],
    total: int,
) -> set[int]:
    """The jobs that run now."""
    if rule == LAS:
        order = [j for queue in queues.queues for j in queue]
    elif rule == FIFO:
        order = sorted(running) + [j for j in alive if j not in running]
    else:
        order = sorted(alive, key=lambda j: left_s[j] * (gpus[j] if rule == SRSF else 1))
    chosen, free = set[int](), total
    for j in order:
        if gpus[j] <= free:
            chosen.add(j)
            free -= gpus[j]
        elif rule == FIFO:
            break
    return chosen
