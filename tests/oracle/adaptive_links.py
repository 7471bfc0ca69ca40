"""Contention of jobs that adapt, as docs/semantics.md says it, in plain Python: who slows whom on NICs and links."""

from collections import defaultdict

from tests.oracle import adaptive


class Fabric:
    """What `Hardware` knows of the servers of one partition. `rows`: the server of every node."""

    def __init__(self, hardware, rows, law):
        self.hardware, self.rows, self.law = hardware, rows, law
        self.longest = 1.0  # stretch so far

    def load(self, place):
        """Seconds that NICs and links need for a second of synchronisation. `place`: node -> GPUs."""
        hw, servers = self.hardware, [self.rows[node] for node in place]
        domains = [hw.domain(0, s) for s in servers]
        found = defaultdict(float)
        if len(set(domains)) < 2:
            return found
        carried = min(hw.nic[0, s] for s in servers)
        for s, domain in zip(servers, domains):
            found["nic", s] = carried / domains.count(domain) / hw.nic[0, s]
        racks = sorted({int(hw.rack[0, s]) for s in servers})
        for here, there in zip(racks, racks[1:] + racks[:1]):
            for e, part in enumerate(hw.route[0, here, there]):
                if here != there and part > 0:
                    found["link", e] += carried * part / hw.link[hw.link_id[0, e]]
        return found

    def stretch(self, jobs):
        """Sets how many times as long every job synchronises in the round that begins."""
        uses, loads, total = {}, {}, defaultdict(float)
        running = [job for job in jobs if job.place]
        for job in running:
            loads[job.name], share = self.load(job.place), job.share()
            alone = max([1.0, *loads[job.name].values()])
            uses[job.name] = {m: x * share / (1 + share * (alone - 1)) for m, x in loads[job.name].items()}
            for m, x in uses[job.name].items():
                total[m] += x
        for job in running:
            own = uses[job.name]
            job.stretch = max(
                [1.0, *(x * self.law(m[0], max(total[m] - own[m], 0.0)) for m, x in loads[job.name].items())]
            )
            self.longest = max(self.longest, job.stretch)


def analytic(kappa):
    """The default law, by channel."""
    return lambda channel, others: 1 + kappa[channel] * others


def fitted(kappa, power):
    """That of a fitted model."""
    return lambda channel, others: 1 + kappa[channel] * others ** power[channel]


class Part(adaptive.World):
    """What one of several schedulers has: `mine` of the nodes; the others count as out."""

    def __init__(self, *args, mine, **more):
        super().__init__(*args, **more)
        self.mine = set(mine)
        self.total = len(self.mine) * self.per_node

    def out(self, now):
        return super().out(now) | set(range(self.nodes)) - self.mine


def play_together(parts, lists, policy, place, contend):
    """Schedulers that decide each for itself, and whose jobs share links."""
    now, every = 0, [job for jobs in lists for job in jobs]
    for part, jobs in zip(parts, lists):
        part.begin(jobs, place)
    while any(job.finish == adaptive.NEVER for job in every):
        contend(every)
        for part, jobs in zip(parts, lists):
            part.run(jobs, now)
        now += parts[0].period
        for part, jobs in zip(parts, lists):
            part.decide(jobs, policy, place, now)
    return {job.name: job.finish - job.submit for job in every}
