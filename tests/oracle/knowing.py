"""What jobs know that fit a model to what they have seen, as docs/semantics.md says it, in plain Python."""

import math
from dataclasses import dataclass, field

import numpy as np

from tests.oracle import adaptive

REMEMBERED = 64


def predict(fit, nodes, r, b):
    """Seconds of a pass and of a step."""
    ac, bc, an, bn, ar, br, g = fit
    one = ac + bc * b
    if r == 1:
        return one, one
    more = max(r - 2, 0)
    network = an + bn * more if nodes > 1 else ar + br * more
    return one, (one**g + network**g) ** (1 / g)


def objective(fit, rows, per_node):
    """What a fit makes small."""
    errors = []
    for r, b, one, step in rows:
        guess = predict(fit, math.ceil(r / per_node), int(r), b)
        errors.append([math.log(guess[0] / one), math.log(guess[1] / step)])
    value = sum(np.sqrt(np.mean(np.square(errors), axis=0))) + 0.001 * (fit[6] - 1) ** 2
    for base, growth in ((2, 3), (4, 5)):
        value += 0.01 * (fit[growth] / fit[base]) ** 2 if fit[base] > 0 else 0.0
    return value


@dataclass
class Job(adaptive.Job):
    seen: list = field(default_factory=list)  # GPUs, local batch, seconds of a pass and of a step, the latest first
    fit: tuple | None = None

    def reached(self, r, per_node):
        """Goodput that it predicts on the fewest nodes."""
        if self.fit is None:
            return float(r)
        return max(self.guesses(r, per_node)[0])

    def guesses(self, r, per_node):
        pairs = self.app_candidates(r)
        goodputs = []
        for b, a in pairs:
            one, step = predict(self.fit, math.ceil(r / per_node), r, b)
            goodputs.append(self.app.gain(r * b * (a + 1), self.epoch) / (step + a * one))
        return goodputs, pairs

    def app_candidates(self, r):
        if self.batch is not None:
            return [self.app.split(self.batch, r)]
        sizes = np.geomspace(max(self.app.batches[0], self.app.local[0] * r), self.app.batches[-1], adaptive.CANDIDATES)
        return [self.app.split(batch, r) for batch in sizes]

    def best(self, placement):
        r, per_node = sum(placement), max(placement) if len(placement) > 1 else 10**9
        if self.fit is None:
            return self.app_candidates(r)[0]
        goodputs, pairs = self.guesses(r, per_node)
        return pairs[int(np.argmax(goodputs))]


class World(adaptive.World):
    """Jobs fit by a function of rows and GPUs of a node."""

    def __init__(self, *args, fit, **kwargs):
        super().__init__(*args, **kwargs)
        self.fit = fit

    def saw(self, job):
        r, (b, _) = job.gpus, job.using
        if all(row[:2] != (r, b) for row in job.seen):
            step, sync = job.app.step_sync(job.placement, b)
            job.seen = [(r, b, step - sync, step + sync * (job.stretch - 1)), *job.seen][:REMEMBERED]
            job.fit = tuple(self.fit(np.array(job.seen, float), self.per_node))
