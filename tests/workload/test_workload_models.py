import dataclasses

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.catalogue import MIXES, Mix, get_mix
from jaxsched.workload.models import CATALOGUE, CORES_PER_GPU, MODEL_NAMES, Profiles, model_index, profiles


def test_catalogue_has_ten_models_with_three_bottlenecks():
    assert len(MODEL_NAMES) >= 10 and len(set(MODEL_NAMES)) == len(MODEL_NAMES)
    assert {m.bottleneck for m in CATALOGUE} == {"network", "cpu", "gpu"}
    names = [name for m in CATALOGUE for name in (m.name, *m.aliases)]
    assert len(set(names)) == len(names)


def test_profiles_are_finite_and_in_range():
    catalogue = profiles()
    for field in dataclasses.fields(Profiles):
        if field.name in ("speed", "plans"):
            continue
        leaf = np.asarray(getattr(catalogue, field.name))
        assert leaf.shape == (len(MODEL_NAMES),) and leaf.dtype == np.float32
        assert (leaf > 0).all() and np.isfinite(leaf).all(), field.name
    assert (np.asarray(catalogue.sens_cpu) <= 1).all() and (np.asarray(catalogue.sens_pcie) <= 1).all()
    assert (np.asarray(catalogue.cpu_cores) <= CORES_PER_GPU).all()


def test_bottlenecks_separate_the_models():
    gradient_rate = {m.name: m.gradient_bytes / m.compute_s for m in CATALOGUE}
    network = [gradient_rate[m.name] for m in CATALOGUE if m.bottleneck == "network"]
    others = [gradient_rate[m.name] for m in CATALOGUE if m.bottleneck != "network"]
    assert min(network) > max(others)
    cpu_need = {m.name: m.cpu_cores * m.sens_cpu for m in CATALOGUE}
    assert min(cpu_need[m.name] for m in CATALOGUE if m.bottleneck == "cpu") > max(
        cpu_need[m.name] for m in CATALOGUE if m.bottleneck != "cpu"
    )


def test_gradient_bytes_follow_parameter_counts():
    by_name = {m.name: m for m in CATALOGUE}
    assert by_name["vgg16"].gradient_bytes == 4 * 138_357_544
    assert by_name["llama_1b"].gradient_bytes == 2 * 1_235_814_400


def test_model_index_takes_aliases_and_names_the_unknown():
    assert model_index("shufflenet_v2_x1_0") == MODEL_NAMES.index("shufflenet_v2")
    assert model_index(" VGG16 ") == MODEL_NAMES.index("vgg16")
    with pytest.raises(UserError, match=r"'alexnet'.*vgg16, vgg19"):
        model_index("alexnet")


@pytest.mark.parametrize("name", MIXES)
def test_mixes_are_probabilities(name):
    probabilities = get_mix(name).probabilities
    assert probabilities.shape == (len(MODEL_NAMES),)
    assert probabilities.sum() == pytest.approx(1.0) and (probabilities >= 0).all()


def test_heavy_mixes_favour_their_bottleneck():
    for name in ("network", "cpu"):
        chosen = np.array([m.bottleneck == name for m in CATALOGUE])
        assert get_mix(f"{name}-heavy").probabilities[chosen].sum() == pytest.approx(0.7)


def test_mix_by_weights_merges_aliases():
    probabilities = get_mix({"shufflenet_v2": 1, "shufflenet_v2_x1_0": 1, "bert": 2}).probabilities
    assert probabilities[model_index("shufflenet_v2")] == 0.5 and probabilities[model_index("bert")] == 0.5


def test_mix_of_named_models_has_them_in_equal_shares():
    probabilities = get_mix("vgg16,bert").probabilities
    assert probabilities[model_index("vgg16")] == probabilities[model_index("bert")] == 0.5
    assert get_mix("dqn").probabilities[model_index("dqn")] == 1.0
    with pytest.raises(UserError, match=r"unknown model 'alexnet'"):
        get_mix("vgg16,alexnet")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"bert": -1.0}, "not negative"),
        ({"bert": 0.0}, "not all 0"),
        ({}, "not all 0"),
        ({"x": 1.0}, "unknown model 'x'"),
    ],
)
def test_bad_weights(weights, message):
    with pytest.raises(UserError, match=message):
        Mix("mine", weights)


def test_unknown_mix():
    with pytest.raises(UserError, match=r"'heavy'; known mixes are default, network-heavy"):
        get_mix("heavy")
