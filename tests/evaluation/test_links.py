"""The use of links over time, worked out by hand."""

import numpy as np
import pytest

from jaxsched.cluster.presets import get_cluster
from jaxsched.evaluation.replay import footprints_of
from jaxsched.evaluation.timelines import link_use
from jaxsched.policies.registry import parse
from jaxsched.simulation.settings import Settings, env_config, env_params
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.jobs import make_job_list


@pytest.mark.slow
def test_a_link_is_used_while_a_gang_spans_racks():
    cluster, settings = get_cluster("leaf-spine-24", 1), Settings(record_placements=True, interference="none")
    assert (np.asarray(cluster.server_rack)[0] == np.repeat([0, 1, 2], 8)).all()
    # 72 GPUs do not fit a rack of 64; the job of 8 stays in a server.
    jobs = make_job_list([0.0, 600.0], [6000.0, 6000.0], [72, 8])
    ((result,),) = simulate([parse("pack")], cluster, [jobs], settings).values()
    config = env_config(cluster, [jobs], settings)
    prints = footprints_of(result.attempts, jobs, cluster, env_params(cluster, config, settings, [jobs]))
    end_s = float(np.nanmax(result.finish_s))
    found = link_use(result.attempts, cluster, prints, 10, end_s)
    racks = np.flatnonzero(result.workers[0].reshape(3, -1).sum(-1))
    assert len(racks) == 2
    ways = {f"{way} rack {t}" for way in ("out of", "into") for t in racks}
    assert {name.split(", ")[1] for name in found.names} == ways and found.use.shape == (4, 10)
    held = np.clip(result.finish_s[0] - np.linspace(0, end_s, 11)[:-1], 0, end_s / 10) / (end_s / 10)
    for use in found.use:
        assert use[0] > 0
        np.testing.assert_allclose(use, use[0] * held, rtol=1e-9, atol=1e-12)
