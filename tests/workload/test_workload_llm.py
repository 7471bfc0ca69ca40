"""Published language models: as large as their makers say, with plans that fit; and jobs that train them."""

import numpy as np
import pytest
import yaml

from jaxsched.errors import UserError
from jaxsched.workload.catalogue import BUILT_IN, get_catalogue
from jaxsched.workload.jobs import offered_load
from jaxsched.workload.llm import MOST_GPUS, draw_planned, entry_of, llm_models, published
from jaxsched.workload.load import WorkloadOptions, get_workload
from jaxsched.workload.plans import check_jobs, memory_bytes

SAID = {  # parameters in billions, by those who published the models
    "gpt3_5b": 5, "gpt3_20b": 20, "gpt3_40b": 40, "gpt3_175b": 175, "llama2_7b": 6.74, "llama2_13b": 13.0,
    "llama2_70b": 69.0, "llama3_1_405b": 405, "mixtral_8x7b": 46.7, "mixtral_8x22b": 141, "deepseek_v2": 236,
}  # fmt: skip


def family(name: str) -> str:
    return name.rpartition("_")[0]


def test_models_have_the_parameters_that_are_said_of_them():
    assert {family(one.name) for one in published()} == set(SAID)
    for one in published():
        assert one.model.parameters == pytest.approx(SAID[family(one.name)] * 1e9, rel=0.025), one.name


def test_plans_fit_and_names_say_their_gpus():
    for one in published():
        assert memory_bytes(one.model, one.plan) <= 80e9 and one.plan.gpus <= MOST_GPUS
        assert one.name.rpartition("_")[2] == str(one.plan.gpus)
    assert len({one.name for one in published()}) == len(published())
    by_hand = {"gpt3_175b_1024": (4, 32, 8), "llama2_70b_1024": (4, 64, 4), "mixtral_8x22b_64": (2, 8, 4)}
    plans = {one.name: (one.plan.tensor, one.plan.data, one.plan.pipeline) for one in published()}
    assert all(plans[name] == degrees for name, degrees in by_hand.items())


def test_a_file_of_them_is_the_same_models(tmp_path):
    names = [model.name for model in llm_models()]
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"models": [entry_of(name) for name in names]}))
    assert get_catalogue(tmp_path / "models.yaml") == get_catalogue("llm")


def test_jobs_have_a_plan_and_its_gpus():
    catalogue = get_catalogue("llm")
    jobs, _ = get_workload("llm", WorkloadOptions(num_jobs=500, total_gpus=2048, schedulers=2, catalogue=catalogue))
    check_jobs(catalogue.models, jobs)
    assert (jobs.model >= len(BUILT_IN.models)).all() and jobs.num_gpus.max() == 256
    assert {"mixtral_8x7b", "deepseek_v2", "llama2_70b"} <= {family(catalogue.names[place]) for place in jobs.model}
    np.testing.assert_allclose(offered_load(jobs, 2048), 0.8)


def test_sizes_are_alike():
    _, gpus = draw_planned(np.random.default_rng(0), llm_models(), 8000, 128)
    sizes, counts = np.unique(gpus, return_counts=True)
    assert sizes.tolist() == [2, 4, 8, 16, 32, 64, 128]
    np.testing.assert_allclose(counts / 8000, 1 / 7, atol=0.02)


def test_no_plan_is_one_line():
    for catalogue, gpus, wrong in ((BUILT_IN, 512, "no model has a plan"), (get_catalogue("llm"), 4, "smallest plan")):
        with pytest.raises(UserError, match=wrong):
            get_workload("llm", WorkloadOptions(total_gpus=gpus, catalogue=catalogue))
