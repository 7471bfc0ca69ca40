import csv
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxsched.calibration.interference.measurements import GPU_COLUMNS, read_measurements
from jaxsched.dynamics.sharing import Law, slowdown

FAMILIES, BATCHES = ("Alpha", "Beta", "Gamma", "Delta"), (8, 16, 32)


def write_csv(path: Path, header, rows) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def synthetic_rows(seed=0, hardware=("k80", "p100")):
    """Pairs whose ratios follow a law of sharing with two channels; families differ more than batch sizes."""
    rng = np.random.default_rng(seed)
    law = Law(
        mix=np.array([[0.5, -3.0], [-3.0, 0.5]]), gate=np.zeros((2, 2)), bias=np.zeros(2), gain=np.array([1.0, 0.0])
    )
    law = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), law)
    jobs = []
    for family in FAMILIES:
        sensitivity, pressure = rng.normal(0, 1.5, 2), rng.uniform(0.1, 1.5, 2)
        jobs += [
            (f"{family} (batch size {batch})", sensitivity + 0.3 * i, pressure * (1 + 0.2 * i), 10.0 / (i + 1))
            for i, batch in enumerate(BATCHES)
        ]
    rows = []
    for strength, gpu in zip((1.0, 0.6), hardware):
        for i, (a, sens_a, press_a, solo_a) in enumerate(jobs):
            for b, sens_b, press_b, solo_b in jobs[i:]:
                ratio_a = 1 / float(slowdown(law, sens_a, strength * press_b))
                ratio_b = 1 / float(slowdown(law, sens_b, strength * press_a))
                rows.append((gpu, a, b, solo_a, solo_b, solo_a * ratio_a, solo_b * ratio_b))
    return rows


@pytest.fixture(scope="session")
def synthetic_file(tmp_path_factory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "pairs.csv", GPU_COLUMNS, synthetic_rows())


@pytest.fixture(scope="session")
def synthetic(synthetic_file):
    return read_measurements([synthetic_file])[0]
