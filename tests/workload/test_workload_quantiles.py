import importlib.resources
import json

import numpy as np
import pytest
from jaxtyping import Float64

from jaxsched.errors import UserError
from jaxsched.workload.generate import (
    GPU_CLASSES,
    LEVELS,
    Quantiles,
    draw_durations,
    gpu_class,
    mean_duration_s,
    philly_quantiles,
    solve_scale,
)
from jaxsched.workload.jobs import JobList, make_job_list


def fit_quantiles(jobs: JobList) -> Quantiles:
    """Quantiles of `jobs`, durations rounded to 5 digits. UserError if a class of GPU counts has no job."""
    classes, logs = gpu_class(jobs.num_gpus), np.log(jobs.duration_s)
    missing = [size for c, size in enumerate(GPU_CLASSES) if not (classes == c).any()]
    if missing:
        raise UserError(
            f"quantiles: the trace has no job of the classes that start at {missing} GPUs, every class needs one"
        )
    rows = [np.exp(np.quantile(logs[classes == c], LEVELS)) for c in range(len(GPU_CLASSES))]
    sizes, counts = np.unique(jobs.num_gpus, return_counts=True)
    return Quantiles(_round(np.array(rows)), sizes.astype(np.int32), counts.astype(np.int64))


def _round(values: Float64[np.ndarray, "*batch"]) -> Float64[np.ndarray, "*batch"]:
    """Rounded to 5 significant digits."""
    return np.array([float(f"{v:.5g}") for v in values.ravel()]).reshape(values.shape)


def test_gpu_class():
    assert gpu_class(np.array([1, 2, 3, 4, 7, 8, 12, 16, 128])).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_shipped_quantiles_are_sound():
    fitted = philly_quantiles()
    assert fitted.duration_s.shape == (len(GPU_CLASSES), len(LEVELS))
    assert (fitted.duration_s > 0).all() and (np.diff(fitted.duration_s, axis=1) >= 0).all()
    assert fitted.counts.sum() == 65_797


def test_shipped_quantiles_are_the_fit_to_the_trace(philly):
    fitted, shipped = fit_quantiles(philly), philly_quantiles()
    np.testing.assert_array_equal(fitted.duration_s, shipped.duration_s)
    assert fitted.sizes.tolist() == shipped.sizes.tolist() and fitted.counts.tolist() == shipped.counts.tolist()


def test_drawn_durations_reproduce_the_trace(philly):
    num_gpus, uniform = philly.num_gpus, np.random.default_rng(0).random(len(philly))
    drawn = draw_durations(philly_quantiles(), num_gpus, uniform)
    for c in range(len(GPU_CLASSES)):
        rows = gpu_class(num_gpus) == c
        levels = [0.05, 0.25, 0.5, 0.75, 0.9, 0.95]
        ours, trace = np.quantile(drawn[rows], levels), np.quantile(philly.duration_s[rows], levels)
        # the sampling error of a quantile in levels is sqrt(q (1 - q) / n); 4 of them, looked up in the trace
        slack = 4 * np.sqrt(0.25 / rows.sum())
        low = np.quantile(philly.duration_s[rows], np.clip(np.array(levels) - slack, 0, 1))
        high = np.quantile(philly.duration_s[rows], np.clip(np.array(levels) + slack, 0, 1))
        assert ((ours >= low * 0.98) & (ours <= high * 1.02)).all(), (GPU_CLASSES[c], ours, trace)


def test_closed_form_mean_is_the_traces_mean(philly):
    for c in range(len(GPU_CLASSES) - 1):  # the last class has 144 jobs: checked against drawing below
        durations = philly.duration_s[gpu_class(philly.num_gpus) == c]
        row = philly_quantiles().duration_s[c]
        assert mean_duration_s(row) == pytest.approx(durations.mean(), rel=0.03)
        assert mean_duration_s(row, 0.1, 3600.0) == pytest.approx(np.minimum(0.1 * durations, 3600).mean(), rel=0.03)


@pytest.mark.parametrize(("scale", "cap"), [(1.0, np.inf), (1.0, 5000.0), (0.01, 100.0), (3.0, 0.5)])
def test_closed_form_mean_is_the_mean_of_what_is_drawn(scale, cap):
    uniform = (np.arange(400_000) + 0.5) / 400_000
    for c, size in enumerate(GPU_CLASSES):
        drawn = draw_durations(philly_quantiles(), np.full(len(uniform), size), uniform)
        expected = np.minimum(scale * drawn, cap).mean()
        assert mean_duration_s(philly_quantiles().duration_s[c], scale, cap) == pytest.approx(expected, rel=1e-3)


def test_closed_form_mean_of_constant_steps():
    assert mean_duration_s(np.full(len(LEVELS), 7.0), 2.0) == pytest.approx(14.0)
    assert mean_duration_s(np.full(len(LEVELS), 7.0), 2.0, 10.0) == pytest.approx(10.0)


def test_solve_scale_hits_the_mean_under_a_cap():
    values = np.array([1.0, 2.0, 50.0])
    scale = solve_scale(lambda s: float(np.minimum(s * values, 30.0).mean()), 20.0, 30.0)
    assert np.minimum(scale * values, 30.0).mean() == pytest.approx(20.0, rel=1e-9)
    with pytest.raises(UserError, match=r"mean_duration_s: 30.0 should be > 0 and less than duration_cap_s \(30\)"):
        solve_scale(lambda s: s, 30.0, 30.0)


def test_fit_needs_every_class():
    with pytest.raises(UserError, match=r"start at \[8, 16\] GPUs"):
        fit_quantiles(make_job_list([0, 0, 0], 1, [1, 2, 4]))


def as_json(quantiles, provenance):
    """The text of the shipped file, one class per line."""
    rows = ",\n".join(f"  {json.dumps(row.tolist())}" for row in quantiles.duration_s)
    return (
        f'{{"provenance": {json.dumps(provenance, indent=1)},\n"gpu_classes": {json.dumps(GPU_CLASSES)},\n'
        f'"levels": {json.dumps(LEVELS.tolist())},\n"duration_s": [\n{rows}],\n'
        f'"sizes": {json.dumps(quantiles.sizes.tolist())},\n"counts": {json.dumps(quantiles.counts.tolist())}}}\n'
    )


def test_the_shipped_file_is_what_is_read():
    shipped = importlib.resources.files("jaxsched.workload").joinpath("data/philly_quantiles.json").read_text()
    assert as_json(philly_quantiles(), json.loads(shipped)["provenance"]) == shipped
