import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.generate import BURSTINESS, GPU_CLASSES, gpu_class, philly_quantiles
from jaxsched.workload.jobs import JobTable
from jaxsched.workload.models import MODEL_NAMES, model_index
from jaxsched.workload.sampler import SampledJobs, sample_table, sampler_for_load

JOBS, HOMES, INTERVAL_S, GPUS = 2000, 4, 60.0, 64


@jax.jit
def sample(keys, params) -> JobTable:
    return jax.vmap(lambda key: sample_table(key, params, JOBS, HOMES))(keys)


def batch(params, size: int = 32, seed: int = 0) -> JobTable:
    return jax.tree.map(np.asarray, sample(jax.random.split(jax.random.key(seed), size), params))


def times_s(table: JobTable) -> np.ndarray:
    return np.asarray(table.arrival, np.float64) * INTERVAL_S - np.asarray(table.lead_s)


SWEEP = [
    {},
    {"durations": "exponential"},
    {"durations": "constant", "gpu_counts": {1: 1.0, 8: 1.0}},
    {"burstiness": BURSTINESS, "diurnal_amplitude": 0.8},
    {"duration_cap_s": 7200.0},
    {"mean_duration_s": 900.0, "duration_cap_s": 7200.0},
]


@pytest.mark.parametrize("options", SWEEP)
def test_offered_load(options):
    """Over 32 x 2,000 jobs; the run times' heavy tail is what the tolerance is for (3 standard errors)."""
    table = batch(sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(**options)))
    area = table.workers * table.duration_s.astype(np.float64)
    span_s = times_s(table)[:, -1].sum()
    tolerance = 3 * (area.std() / area.mean() + BURSTINESS) / np.sqrt(area.size)
    assert tolerance < 0.2
    assert area.sum() / (span_s * GPUS) == pytest.approx(0.8, rel=tolerance)


def test_arrivals_ascend_and_leads_fit():
    for options in SWEEP[:4:3]:
        table = batch(sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(**options)))
        assert (np.diff(times_s(table), axis=1) >= -1e-3 * INTERVAL_S).all()
        assert (np.diff(table.arrival, axis=1) >= 0).all() and (table.arrival >= 0).all()
        assert (table.lead_s >= 0).all() and (table.lead_s < INTERVAL_S).all()
        same = np.diff(table.arrival, axis=1) == 0  # at one boundary the earlier job has the longer lead
        assert same.any() and (np.diff(table.lead_s, axis=1)[same] <= 0).all()


@pytest.mark.slow
def test_deterministic_per_key_and_vmap_agrees_with_one():
    params = sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(diurnal_amplitude=0.5))
    keys = jax.random.split(jax.random.key(3), 2)
    first, second = sample(keys, params), sample(keys, params)
    single = jax.jit(sample_table, static_argnums=(2, 3))(keys[1], params, JOBS, HOMES)
    for name in JobTable.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        np.testing.assert_allclose(getattr(first, name)[1], getattr(single, name), rtol=1e-5, atol=1e-2)
    assert (first.workers[0] != first.workers[1]).any()


def test_params_can_be_swept_under_vmap():
    loads = [0.4, 0.8]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[sampler_for_load(v, GPUS, INTERVAL_S) for v in loads])
    table = jax.jit(jax.vmap(lambda p: sample_table(jax.random.key(0), p, JOBS, HOMES)))(stacked)
    last = times_s(jax.tree.map(np.asarray, table))[:, -1]
    assert last[0] / last[1] == pytest.approx(2.0, rel=1e-4)


def test_shapes_and_types():
    sampler = jax.jit(sample_table, static_argnums=(2, 3))
    table = sampler(jax.random.key(0), sampler_for_load(0.8, GPUS, INTERVAL_S), 17, HOMES)
    for name in JobTable.__dataclass_fields__:
        leaf = getattr(table, name)
        assert leaf.shape == {"allowed": (0,), "asks": (0, 0)}.get(name, (17,)), name
        assert leaf.dtype == (jnp.float32 if name in ("lead_s", "duration_s", "estimate_s") else jnp.int32), name


def test_quantiles_of_the_run_times():
    table = batch(sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(gpu_counts=dict.fromkeys(GPU_CLASSES, 1.0))))
    levels = np.array([0.1, 0.5, 0.9])
    for c, size in enumerate(GPU_CLASSES):
        drawn = table.duration_s[table.workers == size]
        row = philly_quantiles().duration_s[c]
        grid = np.arange(100) / 100
        low, high = (np.interp(levels + d, grid, row[:100]) for d in (-0.015, 0.015))
        ours = np.quantile(drawn, levels)
        assert ((ours > low * 0.99) & (ours < high * 1.01)).all(), size
        assert drawn.min() >= row[0] * 0.999 and drawn.max() <= row[-1] * 1.001


def test_mean_duration_and_cap():
    table = batch(sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(mean_duration_s=900.0, duration_cap_s=7200.0)))
    assert table.duration_s.mean() == pytest.approx(900.0, rel=0.03)
    assert table.duration_s.max() == pytest.approx(7200.0)


@pytest.mark.parametrize("burstiness", [1.0, 3.0])
def test_gaps_vary_as_asked(burstiness):
    gaps = np.diff(times_s(batch(sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(burstiness=burstiness)))))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.05)


def test_diurnal_rate_swings_with_a_random_phase():
    params = sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(durations="constant", diurnal_amplitude=0.8))
    phase = 2 * np.pi * times_s(batch(params, size=64)) / 86400
    waves = np.exp(1j * phase).mean(1)  # |mean| is A / 2 for a whole number of days
    flat = params.replace(diurnal_amplitude=jnp.float32(0))
    none = np.exp(2j * np.pi * times_s(batch(flat, size=64)) / 86400).mean(1)
    assert np.abs(waves).mean() > 0.3 and np.abs(none).mean() < 0.15
    assert np.abs((waves / np.abs(waves)).mean()) < 0.4  # phases differ


def test_sizes_models_ps_homes_and_tenants():
    kind = SampledJobs(gpu_counts={1: 1.0, 8: 3.0}, mix={"bert": 1.0, "vgg16": 3.0}, ps_fraction=0.25, home_skew=1.0)
    params = sampler_for_load(0.8, GPUS, INTERVAL_S, kind)
    table = batch(params)
    assert set(np.unique(table.workers)) == {1, 8} and (table.workers == 8).mean() == pytest.approx(0.75, abs=0.01)
    assert set(np.unique(table.model)) == {model_index("bert"), model_index("vgg16")}
    assert (table.model == model_index("vgg16")).mean() == pytest.approx(0.75, abs=0.01)
    assert (table.ps[table.workers == 1] == 0).all() and set(np.unique(table.ps)) == {0, 2}
    assert (table.ps[table.workers == 8] > 0).mean() == pytest.approx(0.25, abs=0.01)
    np.testing.assert_allclose(
        np.bincount(table.home.ravel()) / table.home.size, np.array([12, 6, 4, 3]) / 25, atol=0.01
    )
    assert set(np.unique(table.tenant)) == set(range(8)) and (table.gpus_per_worker == 1).all()


def test_default_mix_draws_every_model_and_size_up_to_the_limit():
    table = batch(sampler_for_load(0.8, GPUS, INTERVAL_S, SampledJobs(max_gpus=8)))
    assert set(np.unique(table.model)) == set(range(len(MODEL_NAMES)))
    assert set(np.unique(table.workers)) == {1, 2, 4, 8}
    assert gpu_class(table.workers).max() == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load": -1.0}, "load: -1.0"),
        ({"interval_s": 0.0}, "interval_s: 0.0"),
        ({"gpu_counts": {3: 1.0}}, r"\[3\] are not sizes that the sampler can draw"),
        ({"diurnal_amplitude": 1.0}, "diurnal_amplitude < 1"),
        ({"burstiness": 0.5}, "burstiness: 0.5"),
        ({"durations": "x"}, "'x'; known are philly, exponential, constant"),
        ({"mean_duration_s": 10.0, "duration_cap_s": 10.0}, "mean_duration_s: 10.0"),
        ({"duration_cap_s": -1.0}, "duration_cap_s: -1.0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        load, interval_s = options.pop("load", 0.8), options.pop("interval_s", INTERVAL_S)
        sampler_for_load(load, GPUS, interval_s, SampledJobs(**options))
