"""The interference models' signature, the analytic model by hand, and a model that a user hands in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsched.dynamics.interference import (
    CALIBRATION,
    LAWS,
    LEVELS,
    FittedStrengths,
    Interference,
    Strengths,
    analytic,
    default_strengths,
    fitted,
)
from jaxsched.dynamics.resources import CHANNELS, CPU, GPU, LINK, NIC, PCIE, QPI
from jaxsched.workload.models import profiles
from tests.oracle import contention, policies, simulator
from tests.support import strategies

KAPPA = Strengths(kappa=jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], jnp.float32))


def stretch(weights, channel, own, others):
    own, others = jnp.float32(own), jnp.float32(others)
    return float(analytic(weights, channel, jnp.int32(0), own, others))


def test_cpu():
    one = default_strengths()
    assert stretch(one, CPU, 0.5, 0.5) == 1.0  # plentiful
    assert stretch(one, CPU, 0.5, 1.0) == 1.5  # 1.5 cores' worth of work on each core
    assert stretch(one, CPU, 2.0, 1.0) == 1.5  # 3 instead of 2
    assert stretch(one, CPU, 2.0, 0.0) == 1.0  # its own oversubscription is not its co-runners' fault
    assert stretch(KAPPA.replace(kappa=KAPPA.kappa.at[CPU].set(0.5)), CPU, 2.0, 1.0) == 1.25


@pytest.mark.parametrize("channel", [PCIE, QPI, NIC, LINK])
def test_bandwidth(channel):
    # Two jobs that do nothing but communicate: the fair share.
    assert stretch(default_strengths(), channel, 1.0, 1.0) == 2.0
    assert stretch(default_strengths(), channel, 0.3, 0.25) == 1.25
    assert stretch(KAPPA, channel, 0.3, 0.25) == 1 + (channel + 1) * 0.25


CURVE = FittedStrengths(
    kappa=jnp.array([1.0, 1.0, 1.0, 2.5, 2.5, 0.7]), power=jnp.array([1.0, 1.0, 1.0, 1.5, 1.5, 1.0])
)


def test_one_gpu():
    assert stretch(KAPPA, GPU, 1.0, 2.0) == 13.0 and stretch(default_strengths(), GPU, 1.0, 0.0) == 1.0
    assert float(fitted(CURVE, GPU, jnp.int32(0), jnp.float32(1), jnp.float32(3))) == pytest.approx(3.1)
    with pytest.raises(ValueError, match="kappa: has 5 channels"):
        stretch(Strengths(kappa=jnp.ones(5)), GPU, 1.0, 1.0)


EVERY = {name: (model, default_strengths()) for name, model in LAWS.items()} | {"fitted": (fitted, CURVE)}


def test_fitted():
    curve = lambda channel, others: float(fitted(CURVE, channel, jnp.int32(0), jnp.float32(0.5), jnp.float32(others)))
    assert curve(NIC, 0.25) == pytest.approx(1 + 2.5 * 0.125)
    assert curve(PCIE, 0.25) == 1.25  # nothing is measured there
    assert curve(CPU, 1.0) == 1.5
    slope = jax.grad(lambda others: fitted(CURVE, LINK, jnp.int32(0), jnp.float32(0.5), others))
    assert float(slope(jnp.float32(0.0))) == 0.0


def test_strengths_lie_in_their_ranges():
    low, default, high = (default_strengths(level).kappa for level in ("low", "default", "high"))
    assert (0 < low).all() and (low < default).all() and (default < high).all()
    assert set(CALIBRATION) == set(CHANNELS) and LEVELS[0] == "default"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("channel", range(len(CHANNELS)))
def test_every_model_keeps_the_signature(name, channel):
    """At least 1, exactly 1 alone, never falling in what others do; own, others and model broadcast."""
    function, weights = EVERY[name]
    own = jnp.linspace(0, 3, 7)[:, None, None]
    others = jnp.linspace(0, 4, 9)[:, None]
    model = jnp.arange(3)
    out = np.asarray(function(weights, channel, model, own, others))
    out = np.broadcast_to(out, (7, 9, 3))
    assert (out >= 1).all() and (out[:, 0] == 1).all()
    assert (np.diff(out, axis=1) >= 0).all()


@pytest.mark.slower
def test_fitted_agrees_with_the_oracle():
    def by_hand(channel, model, own, others):
        if channel == "cpu":
            return max(1.0, own + others) / max(1.0, own)
        steep = channel in ("nic", "link")
        return 1 + (2.5 * others**1.5 if steep else others)

    check_against_the_oracle(fitted, CURVE, by_hand)


@pytest.mark.slower
def test_a_users_own_model():
    """Any function of the signature takes part in the simulation, with weights of its own."""

    def steep(weights, channel, model, own, others):
        return 1.0 + weights["by_model"][model] * others**2 * (channel + 1)

    by_model = np.linspace(0.1, 1.0, len(profiles().compute_s))

    def steep_oracle(channel, model, own, others):
        return 1.0 + float(np.float32(by_model[model])) * others**2 * (contention.CHANNELS.index(channel) + 1)

    check_against_the_oracle(steep, {"by_model": jnp.asarray(by_model, jnp.float32)}, steep_oracle)


def check_against_the_oracle(law, weights, by_hand):
    """Random clusters and jobs: both simulators give the same finish times."""
    spec = ("load-balance",)
    config = strategies.SHAPES["two"].config()
    for seed in range(6):
        case = strategies.random_case(seed, "two")
        params = case.params.replace(interference=Interference(law=law, weights=weights))
        state, _ = strategies.jit_run(config, spec)(params, case.table, 0)
        ours = strategies.outcome(case, state)
        theirs = simulator.simulate(
            case.cluster,
            case.jobs,
            case.params.profiles,
            policies.make_policy("load-balance"),
            interval_s=case.interval_s,
            rounds=case.shape.rounds,
            interference=by_hand,
            queue_slots=case.shape.queue_slots,
            running_slots=case.shape.running_slots,
        )
        np.testing.assert_allclose(ours.finish_s, theirs.finish_s, rtol=1e-5)
