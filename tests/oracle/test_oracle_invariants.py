"""Invariants of whatever the oracle simulates."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.oracle.cases import RACKS, make_cluster, make_jobs, make_profiles, run
from tests.oracle.policies import MATCHED, NAMES, ORDERS, make_policy

# --------------------------------------------------------------------------------------------------------- invariants


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    name=st.sampled_from(NAMES),
    order=st.sampled_from(ORDERS),
    backfill=st.booleans(),
    forward=st.sampled_from(["stay", "forward", "spread"]),
)
def test_invariants(seed, name, order, backfill, forward):
    """GPUs are never overcommitted, starts are boundaries, and no job beats its ideal run time."""
    assume(name != "match" or order in MATCHED)
    rng = np.random.default_rng(seed)
    gpus = rng.integers(0, 5, (2, 3, 2))
    gpus[:, 0, 0] = 4
    cluster = make_cluster(
        gpus, racks=[[0, 0, 1]] * 2, links=[4.0] * 4, link_id=[list(range(4))] * 2, route=RACKS[:, :2, :2, :4]
    )
    rows = [
        {
            "submit": float(x),
            "duration": float(rng.uniform(1, 300)),
            "W": int(rng.integers(1, 7)),
            "g": int(rng.choice([1, 1, 2])),
            "U": int(rng.integers(0, 3)),
            "model": int(rng.integers(2)),
            "tenant": int(rng.integers(2)),
            "home": int(rng.integers(2)),
        }
        for x in np.sort(rng.uniform(0, 400, 8))
    ]
    profiles = make_profiles(
        {"gradient_bytes": 5, "cpu_cores": 3, "sens_cpu": 0.5, "ps_cores": 2},
        {"gradient_bytes": 1, "input_bytes": 2, "sens_pcie": 0.3},
    )
    r = run(cluster, make_jobs(*rows), profiles, make_policy(name, order, backfill, forward), interference="analytic")
    flat = gpus.reshape(2, -1)
    for j, row in enumerate(rows):
        if r.status[j] == "rejected":
            assert all((flat[p] // row["g"]).sum() < row["W"] for p in range(2))
            continue
        assert r.status[j] == "finished"
        assert sum(r.workers[j].values()) == row["W"] and sum(r.ps[j].values()) == row["U"]
        assert r.start_s[j] % 60 == 0 and r.start_s[j] >= row["submit"]
        assert r.finish_s[j] - r.start_s[j] >= row["duration"] * (1 - 2e-6)
    for t in sorted(set(r.start_s[~np.isnan(r.start_s)])):
        used = np.zeros_like(flat)
        for j, row in enumerate(rows):
            if r.start_s[j] <= t < r.finish_s[j]:
                for a, count in r.workers[j].items():
                    used[r.partition[j], a] += count * row["g"]
        assert (used <= flat).all()
