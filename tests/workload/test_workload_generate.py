import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.generate import BURSTINESS, DAY_S, SyntheticJobs, slow_share, synthetic
from jaxsched.workload.jobs import offered_load
from jaxsched.workload.models import MODEL_NAMES, model_index


def make(seed: int = 0, num_jobs: int = 2000, total_gpus: int = 64, load: float = 0.7, **options):
    return synthetic(np.random.default_rng(seed), num_jobs, total_gpus, load, SyntheticJobs(**options))


@pytest.mark.parametrize("arrivals", ["poisson", "diurnal", "bursty"])
@pytest.mark.parametrize("durations", ["philly", "exponential", "constant"])
def test_load_is_exact(arrivals, durations):
    jobs = make(arrivals=arrivals, durations=durations)
    assert offered_load(jobs, 64) == pytest.approx(0.7, rel=1e-12)
    assert jobs.submit_s[0] == 0 and (np.diff(jobs.submit_s) >= 0).all() and len(jobs) == 2000


def test_same_seed_same_jobs():
    one, two, other = make(1), make(1), make(2)
    assert one.submit_s.tolist() == two.submit_s.tolist() and one.model.tolist() == two.model.tolist()
    assert one.submit_s.tolist() != other.submit_s.tolist()


def test_gaps_vary_as_asked():
    def variation(arrivals):
        gaps = np.diff(make(num_jobs=50_000, durations="constant", arrivals=arrivals).submit_s)
        return gaps.std() / gaps.mean()

    assert variation("poisson") == pytest.approx(1.0, rel=0.05)
    assert variation("bursty") == pytest.approx(BURSTINESS, rel=0.05)


def test_diurnal_arrivals_follow_the_sine():
    jobs = make(num_jobs=50_000, durations="constant", gpu_counts={1: 1}, mean_duration_s=2000, arrivals="diurnal")
    assert jobs.submit_s[-1] > 20 * DAY_S
    phase = 2 * np.pi * jobs.submit_s / DAY_S
    # with rate 1 + A sin, the mean of sin over the arrivals is A / 2
    assert np.sin(phase).mean() == pytest.approx(0.25, abs=0.02)
    assert np.cos(phase).mean() == pytest.approx(0.0, abs=0.02)


def test_slow_share():
    assert slow_share(1.0) == 0.5
    share = slow_share(3.0)
    assert 1 / (2 * share * (1 - share)) - 1 == pytest.approx(9.0)
    with pytest.raises(UserError, match=r"burstiness: 0\.5"):
        slow_share(0.5)


@pytest.mark.parametrize("durations", ["philly", "exponential"])
def test_mean_duration_and_cap_hold_together(durations):
    jobs = make(durations=durations, mean_duration_s=500.0, duration_cap_s=2000.0)
    assert jobs.duration_s.mean() == pytest.approx(500.0, rel=1e-9) and jobs.duration_s.max() <= 2000.0


def test_sizes_follow_weights_and_limits():
    jobs = make(num_jobs=20_000, gpu_counts={1: 1, 4: 3, 64: 5}, max_gpus=32)
    assert set(jobs.workers.tolist()) == {1, 4}
    assert (jobs.workers == 4).mean() == pytest.approx(0.75, abs=0.02)
    assert make(total_gpus=8).workers.max() <= 8
    assert (make(num_jobs=20_000).workers == 1).mean() == pytest.approx(0.9385, abs=0.01)  # Philly


def test_ps_fraction():
    jobs = make(num_jobs=20_000, gpu_counts={1: 1, 2: 1, 16: 1}, ps_fraction=0.3)
    assert (jobs.ps[jobs.workers == 1] == 0).all()
    assert (jobs.ps[jobs.workers > 1] > 0).mean() == pytest.approx(0.3, abs=0.02)
    assert set(jobs.ps[jobs.workers == 2].tolist()) == {0, 1} and set(jobs.ps[jobs.workers == 16].tolist()) == {0, 4}


def test_mix_decides_the_models():
    jobs = make(num_jobs=20_000, mix={"vgg16": 3, "bert": 1})
    assert (jobs.model == model_index("vgg16")).mean() == pytest.approx(0.75, abs=0.02)
    assert set(jobs.model.tolist()) == {model_index("vgg16"), model_index("bert")}
    assert set(make().model.tolist()) == set(range(len(MODEL_NAMES)))


def test_homes_round_robin_or_skewed():
    assert make(schedulers=4).home[:6].tolist() == [0, 1, 2, 3, 0, 1]
    shares = np.bincount(make(num_jobs=30_000, schedulers=3, home_skew=1.0).home) / 30_000
    np.testing.assert_allclose(shares, np.array([6, 3, 2]) / 11, atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_jobs": 1}, "num_jobs >= 2"),
        ({"load": 0.0}, "load: 0.0"),
        ({"load": np.nan}, "load: nan"),
        ({"arrivals": "weekly"}, "'weekly'; known are poisson, diurnal, bursty"),
        ({"durations": "helios"}, "'helios'; known are philly, exponential, constant"),
        ({"ps_fraction": 1.5}, "ps_fraction: 1.5"),
        ({"gpu_counts": {64: 1.0}, "max_gpus": 8}, "sizes from 1 to 8"),
        ({"gpu_counts": {1: -1.0}}, "weights >= 0"),
        ({"duration_cap_s": 0.0}, "duration_cap_s: 0.0"),
        ({"mean_duration_s": 100.0, "duration_cap_s": 50.0}, "mean_duration_s: 100.0"),
        ({"home_skew": -1.0, "schedulers": 2}, "home_skew: -1.0"),
        ({"mix": "none"}, "unknown mix 'none'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        make(**options)
