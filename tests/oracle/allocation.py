"""Who gets how many GPUs: policies for jobs that adapt, as docs/semantics.md says them, in plain Python."""

import math

import numpy as np

from tests.oracle.adaptive import NEVER, full_nodes, most_free, whole_nodes


def tiresias(world, jobs, now):
    for job in jobs:
        if job.fallen is None and job.service >= 16 * 3600:
            job.fallen = now
    queue = sorted(jobs, key=lambda job: (job.fallen is not None, job.fallen or 0.0, job.submit))
    left, gpus = world.total, {}
    for job in queue:
        if job.tuned <= left:
            gpus[job.name] = job.tuned
            left -= job.tuned
    return gpus, queue


def optimus(world, jobs, now):
    def left(job, r):
        b, a = job.app.split(job.batch, r)
        done = job.app.iterations
        near = sorted(done)
        ends = [np.interp(job.batch, near, [done[x][e] for x in near]) for e in (job.epoch, job.app.epochs - 1)]
        return max(ends[1] - ends[0], 1.0) * job.app.seconds(full_nodes(r, world.per_node), b, a)

    gpus, free = fewest(world, jobs)
    while free:
        best, taker = 0.0, None
        for job in jobs:
            r = gpus.get(job.name, 0)
            if r and r < job.most:
                gain = left(job, r) - left(job, r + 1)
                if gain > best:
                    best, taker = gain, job
        if taker is None:
            break
        gpus[taker.name] += 1
        free -= 1
    return gpus, sorted(jobs, key=lambda job: gpus.get(job.name, 0))


def fewest(world, jobs):
    gpus, free = {}, world.total
    for job in jobs:
        if job.least <= free:
            gpus[job.name] = job.least
            free -= job.least
    return gpus, free


def equal(world, jobs, now):
    """Again and again one GPU more for all that have fewest, until there are too few; then for the first ones."""
    gpus, free = fewest(world, jobs)
    while more := [job for job in jobs if 0 < gpus.get(job.name, 0) < job.most]:
        least = min(gpus[job.name] for job in more)
        more = [job for job in more if gpus[job.name] == least][:free]
        if not more:
            break
        for job in more:
            gpus[job.name] += 1
        free -= len(more)
    return gpus, jobs


def choices_of(per_node, most):
    return [r for r in range(1, most + 1) if r % per_node == 0 or (r < per_node and r & (r - 1) == 0)]


def pollux(world, jobs, now):
    values = []
    for job in jobs:
        share = min(max(world.total // len(jobs), job.least), job.most)
        base = job.reached(share, world.per_node)
        age = now - job.submit
        kept = max(age - world.restart * job.restarts, 0) / (age + world.restart) if job.place else 1.0
        value = {0: -1000.0}
        for r in choices_of(world.per_node, min(job.most, max(2 * job.widest, job.least))):
            if r >= job.least:
                speedup = job.reached(r, world.per_node) / base * (1.0 if r == job.gpus else kept)
                value[r] = -1.0 / max(speedup, 1e-3)
        values.append(value)
    return dict(zip([job.name for job in jobs], by_gain(values, world.total))), jobs


def by_gain(values, total):
    """The jumps of most gain per GPU, one by one."""
    has = [0] * len(values)
    while True:
        best, jump = 0.0, None
        for i, value in enumerate(values):
            for r in sorted(value):
                if r > has[i] and r - has[i] <= total - sum(has):
                    gain = (value[r] - value[has[i]]) / (r - has[i])
                    if gain > best:
                        best, jump = gain, (i, r)
        if jump is None:
            return has
        has[jump[0]] = jump[1]


def afs(world, jobs, now):
    """GPUs one by one, to whoever stands after all comparisons."""
    gpus, free = {job.name: 0 for job in jobs}, world.total

    def pace(job, r):
        return job.reached(r, world.per_node) if r else 0.0

    def more(job):
        r = gpus[job.name]
        return job.least if r == 0 else r + 1

    def left(job):
        return job.app.ends[-1] - job.progress

    def better(one, other):
        """Of two jobs, who gets the GPU; `one` came first."""
        bare = [job for job in (one, other) if gpus[job.name] == 0]
        if len(bare) == 2:
            return other if left(other) / pace(other, more(other)) < left(one) / pace(one, more(one)) else one
        end = [NEVER if job in bare else left(job) / pace(job, gpus[job.name]) for job in (one, other)]
        a, b = (other, one) if end[1] < end[0] else (one, other)
        gain = {job.name: pace(job, more(job)) - pace(job, gpus[job.name]) for job in (a, b)}
        return a if gain[a.name] / pace(a, gpus[a.name]) > gain[b.name] / pace(b, more(b)) else b

    while True:
        may = [
            job
            for job in jobs
            if more(job) <= job.most
            and more(job) - gpus[job.name] <= free
            and pace(job, more(job)) > pace(job, gpus[job.name])
        ]
        if not may:
            return gpus, jobs
        best = may[0]
        for job in may[1:]:
            best = better(best, job)
        free -= more(best) - gpus[best.name]
        gpus[best.name] = more(best)


def marginal(world, jobs, now):
    values = []
    for job in jobs:
        age = now - job.submit
        kept = max(age - world.restart * job.restarts, 0) / (age + world.restart) if job.place else 1.0
        value = {0: 0.0}
        for r in choices_of(world.per_node, job.most):
            if r >= job.least:
                base = job.reached(job.least, world.per_node)
                value[r] = job.reached(r, world.per_node) / base * (1.0 if r == job.gpus else kept)
        values.append(value)
    return dict(zip([job.name for job in jobs], by_gain(values, world.total))), jobs


def sia_values(world, jobs, now):
    """What every choice of a job is worth; a job in a restart has one choice."""
    values = []
    for job in jobs:
        age, lost = now - job.submit, max(job.restarts - 1, 0) * world.restart
        kept = max(age - lost, 0) / (age + world.restart) if job.place and age >= world.restart else 1.0
        widths = [r for r in choices_of(world.per_node, job.most) if r >= job.least]
        may = [r for r in widths if r <= max(2 * job.widest, widths[0])]
        if job.place and job.restart > 0:
            may = [job.gpus]
        worst = min((job.reached(r, world.per_node) for r in may), default=0.0)
        value = {} if job.place and job.restart > 0 else {0: -1.1}
        for r in may:
            speedup = job.reached(r, world.per_node) / worst if job.widest else 1.0
            value[r] = -1.0 / math.sqrt(speedup * (1.0 if r == job.gpus else kept))
        values.append(value)
    return values


def sia_greedy(world, jobs, now):
    values = [{0: -1000.0, **value} for value in sia_values(world, jobs, now)]
    return dict(zip([job.name for job in jobs], by_gain(values, world.total))), jobs


PLACING = {
    **{tiresias: most_free, optimus: most_free, equal: most_free, afs: most_free},
    **{pollux: whole_nodes, marginal: whole_nodes, sia_greedy: whole_nodes},
}
