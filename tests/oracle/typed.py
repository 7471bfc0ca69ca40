"""Several GPU types: the world and `sia-greedy`, as docs/semantics.md says them, in plain Python."""

import math

from tests.oracle import adaptive
from tests.oracle.allocation import choices_of

NOTHING = (0, 0)


class Job(adaptive.Job):
    """A job whose profile is that of the GPU type which it has; `app` is that of the first one before."""

    def __init__(self, apps, name, submit, tuned, least, high):
        super().__init__(name, submit, apps[0], tuned, None, least=least, high=high)
        self.apps, self.kind = apps, 0

    def on(self, kind, r, per_node):
        """Goodput with r GPUs of a type on the fewest nodes; 0: not covered."""
        if r > self.apps[kind].most(self.batch):
            return 0.0
        mine, self.app = self.app, self.apps[kind]
        found = self.reached(r, per_node) if self.covered(r, per_node) else 0.0
        self.app = mine
        return found


class World(adaptive.World):
    """Nodes of one type after those of another; `types` has their number and their GPUs."""

    def __init__(self, types, **more):
        super().__init__(nodes=sum(count for count, _ in types), **more)
        self.types = types
        self.node_kind = [kind for kind, (count, _) in enumerate(types) for _ in range(count)]

    def numbers(self, job, place):
        """GPUs that a job can have, on some type."""
        found = set()
        for kind, (count, per_node) in enumerate(self.types):
            found |= {r for r in choices_of(per_node, count * per_node) if job.on(kind, r, per_node) > 0}
        return [r for r in found if job.least <= r <= job.high]

    def free_without(self, out):
        self.totals = [0] * len(self.types)
        free = [0 if n in out else self.types[kind][1] for n, kind in enumerate(self.node_kind)]
        for n, kind in enumerate(self.node_kind):
            self.totals[kind] += free[n]
        return free

    def put(self, place, there, gpus, free, order):
        """Each type by itself: on nodes of others nothing is free."""
        new = {}
        for kind, (_, per_node) in enumerate(self.types):
            wanted = {name: r for name, (r, t) in gpus.items() if r and t == kind}
            mine = [job for job in there if job.name in wanted]
            room = [f if k == kind else 0 for f, k in zip(free, self.node_kind)]
            new |= place(mine, wanted, room, per_node, [job for job in order if job.name in wanted])
            for job in mine:
                if job.name in new:
                    job.kind, job.app = kind, job.apps[kind]
        return new


def sia_greedy(world, jobs, now):
    """Prices of every type, lowered in turn; then jumps."""
    values = [sia_values(world, job, now) for job in jobs]
    has = at_lowest_prices(values, world.totals)
    while True:
        best, jump = 0.0, None
        for i, value in enumerate(values):
            (r, kind), demand = has[i], taken(has, len(world.totals))
            for choice, worth in value.items():
                more = choice[0] - (r if choice[1] == kind else 0)
                if more > 0 and demand[choice[1]] + more <= world.totals[choice[1]]:
                    gain = (worth - value[has[i]]) / more
                    if gain > best:
                        best, jump = gain, (i, choice)
        if jump is None:
            return dict(zip([job.name for job in jobs], has)), jobs
        has[jump[0]] = jump[1]


def sia_values(world, job, now):
    """By GPUs and type. A job in a restart has its own choice, and next to nothing for none."""
    age, lost = now - job.submit, max(job.restarts - 1, 0) * world.restart
    kept = max(age - lost, 0) / (age + world.restart) if job.place and age >= world.restart else 1.0
    pairs = [(r, t) for t, (count, width) in enumerate(world.types) for r in choices_of(width, count * width)]
    first = min(r for r, _ in pairs if r >= job.least)
    now_has = (job.gpus, job.kind) if job.place else None
    stuck = bool(job.place) and job.restart > 0
    paces = {}
    for r, t in pairs:
        pace = job.on(t, r, world.types[t][1])
        within = job.least <= r <= min(job.high, max(2 * job.widest, first)) and r <= world.totals[t]
        if pace > 0 and within and (not stuck or (r, t) == now_has):
            paces[r, t] = pace
    value = {NOTHING: -1000.0 if stuck else -1.1}
    for choice, pace in paces.items():
        speedup = pace / min(paces.values()) if job.widest else 1.0
        value[choice] = -1.0 / math.sqrt(max(speedup * (1.0 if choice == now_has else kept), 1e-9))
    return value


def taken(has, types):
    return [sum(r for r, kind in has if kind == t) for t in range(types)]


def at_lowest_prices(values, totals):
    kept = [NOTHING] * len(values)
    gains = [(value[c] - value[NOTHING]) / c[0] for value in values for c in value if c[0]]
    highest = 2.0 * max([0.0, *gains, 1e-9])
    prices = [highest] * len(totals)
    for kind in [*range(len(totals))] * 3:
        low, high = highest / 2**24, prices[kind]
        for step in range(11):
            price = math.sqrt(low * high) if step else 0.0
            asked = [price if t == kind else prices[t] for t in range(len(totals))]
            chosen = [max(value, key=lambda c: value[c] - asked[c[1]] * c[0]) for value in values]
            if all(used <= there for used, there in zip(taken(chosen, len(totals)), totals)):
                high, kept = price, chosen
            else:
                low = max(low, price)
        prices[kind] = high
    return kept
