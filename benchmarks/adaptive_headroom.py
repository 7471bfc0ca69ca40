"""What knowledge of the time left is worth to jobs that adapt: weights of jobs under the rule of `pollux`.

    python benchmarks/adaptive_headroom.py DATA [LOAD ...]

`DATA` holds `profiles` and `workloads-LOAD`, as for `jaxsched reproduce-table pollux`. A job counts in the sum by a
weight: its seconds left at a fair share of the GPUs to the power -k (known), or its seconds done so far, likewise
(blind). k is 0 for `pollux` itself. The lists of all weights are played at once, with k in a column that `pollux` does
not read.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxsched.adaptive.choosing import by_gain, harm, whole_choices
from jaxsched.adaptive.papers.pollux_and_sia import workload_files
from jaxsched.adaptive.profiles import read_applications
from jaxsched.adaptive.simulate import simulate
from jaxsched.adaptive.view import AllocationPolicy, View, whole_nodes
from jaxsched.adaptive.workload import read_workload

EXPONENTS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, -0.125, -0.25, -0.5, -1.0)  # below 0: blind
LEAST_S = 60.0


def weighted(view: View):
    """`pollux`, with weights by the exponent that stands in the column of deadlines."""
    choices, share = whole_choices(view), view.total[0] // jnp.maximum(view.active.sum(), 1)
    fair = view.goodput_at(jnp.clip(share, view.least_gpus, view.most_gpus)[:, None])[:, 0]
    done_s, left_s = view.progress / fair, (view.work - view.progress) / fair
    exponent = view.deadline_s
    seconds = jnp.where(exponent < 0, done_s, left_s)
    weight = jnp.maximum(seconds, LEAST_S) ** -jnp.abs(exponent)
    return choices[by_gain(harm(view, choices) * weight[:, None], choices, view.total[:1])]


def main(data: Path, loads: list[str]) -> None:
    apps = read_applications(data / "profiles")
    policy = AllocationPolicy("weighted", weighted, whole_nodes)
    for load in loads:
        lists = [read_workload(path, apps) for path in workload_files(data / f"workloads-{load}")]
        many = [[job._replace(deadline_s=k) for job in jobs] for k in EXPONENTS for jobs in lists]
        means = np.array([result.jct_s.mean() for result in simulate(policy, apps, many)]).reshape(len(EXPONENTS), -1)
        for k, row in zip(EXPONENTS, means):
            ratio = row / means[0]
            print(
                f"load {load} {'blind' if k < 0 else 'known'} {abs(k):5.3f}: {row.mean():9.1f} s, "
                f"{ratio.mean():.3f} +- {2 * ratio.std(ddof=1) / len(row) ** 0.5:.3f} of pollux",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["0.5", "1.0", "2.0"])
