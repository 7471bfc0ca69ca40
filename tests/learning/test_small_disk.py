"""Training on a disk that is too small: one line each time, and with more room it goes on bit for bit."""

import jax.numpy as jnp
import pytest

from jaxsched.errors import UserError
from jaxsched.learning.loop import METRICS_FILE, STATE_FOLDER, Programs, train
from jaxsched.learning.state import has_step
from tests.support.disks import disk, remounted


@pytest.mark.long
def test_a_run_outgrows_its_disk_and_goes_on(config, state, step, tmp_path):
    programs = Programs(initial=lambda: state, step=step, validate=lambda weights: jnp.float32(100.0))
    train(config, tmp_path / "whole", programs=programs, save_every=2)
    kilobytes, failures = 64, 0
    with disk(tmp_path / "small", f"{kilobytes}k") as small:
        run = small / "run"
        while True:
            try:
                train(config, run, programs=programs, save_every=2, resume=has_step(run / STATE_FOLDER))
                break
            except UserError as error:
                assert "No space left on device" in str(error) and "\n" not in str(error)
                assert ("--resume" in str(error)) == has_step(run / STATE_FOLDER)
                failures, kilobytes = failures + 1, kilobytes * 5 // 4
                remounted(small, f"size={kilobytes}k")
        assert failures > 2
        assert (run / METRICS_FILE).read_bytes() == (tmp_path / "whole" / METRICS_FILE).read_bytes()
