"""Jobs like Acme's have the published marginals."""

import numpy as np
import pytest

from jaxsched.workload.generate import KALOS, SEREN, draw_acme, shape_of
from jaxsched.workload.load import WorkloadOptions, get_workload


@pytest.mark.parametrize("published", [SEREN, KALOS])
def test_the_shape_has_the_published_marginals(published):
    gpus, run_s = draw_acme(np.random.default_rng(0), published, 300_000, 1024, None, np.inf)
    assert gpus.mean() == pytest.approx(published.mean_gpus, rel=0.03) and np.median(gpus) == 1 and gpus.max() == 1024
    assert np.median(run_s) == pytest.approx(published.median_run_s, rel=0.03)
    assert run_s.mean() == pytest.approx(published.mean_run_s, rel=0.05)
    assert run_s.max() <= published.longest_s
    # The mean of GPU time converges slowly: in closed form, before the longest run times are cut.
    of = shape_of(published)
    mean_gpu_s = np.exp(of.location + of.spread**2 / 2) * (of.weights @ of.sizes ** (1 + of.growth))
    assert mean_gpu_s == pytest.approx(published.mean_gpu_s)


def test_large_gangs_train_language_models_and_none_is_larger_than_the_cluster():
    jobs, _ = get_workload("acme-like", WorkloadOptions(num_jobs=3000, total_gpus=256, load=0.5))
    assert jobs.num_gpus.max() <= 256
    large = jobs.num_gpus >= 32
    assert large.any() and (jobs.gpus_per_worker[large] == 4).all() and (jobs.gpus_per_worker[~large] == 1).all()


def test_run_times_can_be_scaled_and_cut():
    _, run_s = draw_acme(np.random.default_rng(0), SEREN, 5000, 64, 600.0, 5000.0)
    assert run_s.mean() == pytest.approx(600.0) and run_s.max() <= 5000.0
