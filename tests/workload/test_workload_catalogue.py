"""A user's own models: they are read, drawn and played as the project's; whatever is wrong is said in one line."""

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.catalogue import BUILT_IN, LLM_KINDS, get_catalogue
from jaxsched.workload.jobs import take
from jaxsched.workload.load import WorkloadOptions, get_workload
from jaxsched.workload.models import CATALOGUE, profiles
from jaxsched.workload.traces import read_trace, write_native

OURS = """
models:
  - name: our_llm
    compute_s: 0.62
    gpu_type: A100
    gradient_bytes: 2.6e9
    sens_cpu: 0.25
    speeds: {A100: 2.2, H100: 4}
    aliases: [our-llm]
  - {name: bert, compute_s: 0.5, gradient_bytes: 1.0e+6}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str):
        path = tmp_path / "models.yaml"
        path.write_text(text)
        return path

    return write


def test_models_of_a_file_come_after_the_projects_own_or_take_their_place(write):
    catalogue = get_catalogue(write(OURS))
    assert catalogue.names == (*BUILT_IN.names, "our_llm")
    assert (
        catalogue.index(" Our-LLM") == len(BUILT_IN.models)
        and catalogue.models[catalogue.index("bert")].compute_s == 0.5
    )
    mine = catalogue.models[-1]
    assert (mine.gradient_bytes, mine.cpu_cores, mine.batch_size, mine.gpu_type) == (2.6e9, 1.0, 1, "A100")
    columns = profiles(("V100", "A100", "T4"), catalogue.models)
    np.testing.assert_allclose(columns.speed[-1], [1.0, 2.2, 0.0, 0.0])
    assert get_catalogue() is BUILT_IN and BUILT_IN.names[: len(CATALOGUE)] == tuple(m.name for m in CATALOGUE)


def test_jobs_may_name_them(write, tmp_path):
    catalogue, path = get_catalogue(write(OURS)), tmp_path / "jobs.csv"
    path.write_text("job_id,submit_time_s,num_gpus,duration_s,model,gpu_type\na,0,1,10,our-llm,H100\nb,1,1,10,gpt2,\n")
    jobs, _ = read_trace(path, catalogue=catalogue)
    assert [catalogue.names[model] for model in jobs.model] == ["our_llm", "gpt2"]
    assert jobs.gpu_type.tolist() == ["H100", ""]
    write_native(tmp_path / "again.csv", jobs, catalogue)
    again, _ = read_trace(tmp_path / "again.csv", catalogue=catalogue)
    assert again.model.tolist() == jobs.model.tolist() and again.gpu_type.tolist() == jobs.gpu_type.tolist()
    with pytest.raises(UserError, match="line 2, model: 'our-llm' should be one of the known models vgg16"):
        read_trace(path)


def test_a_mix_may_name_them(write):
    options = WorkloadOptions(num_jobs=50, total_gpus=64, mix="our_llm,bert", catalogue=get_catalogue(write(OURS)))
    jobs, _ = get_workload("philly-like", options)
    assert set(jobs.model.tolist()) == {options.catalogue.index("our_llm"), options.catalogue.index("bert")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: []", "models is .*; it must be a list of models"),
        ("model: []", "unknown key 'model'; valid keys: models"),
        ("models: [{name: a, compute_s: 1}]", r"models\[0\]: has no gradient_bytes"),
        ("models: [{name: a, compute_s: 0, gradient_bytes: 1}]", "compute_s is .*0.*a number above 0"),
        ("models: [{name: a, compute_s: 1, gradient_bytes: -1}]", "gradient_bytes is -1; it must be a number from 0"),
        ("models: [{name: a, compute_s: 1, gradient_bytes: .nan}]", "gradient_bytes is nan; it must be"),
        ("models: [{name: a, compute_s: 1, gradient_bytes: 1, sens_cpu: 2}]", "sens_cpu is 2; .* a share from 0 to 1"),
        ("models: [{name: a, compute_s: 1, gradient_bytes: 1, speeds: {A100: no}}]", "A100 is .*; it must be a number"),
        ("models: [{name: a, compute_s: 1, gradient_bytes: 1, colour: 3}]", "unknown key 'colour'"),
        ("models: [{name: 'a,b', compute_s: 1, gradient_bytes: 1}]", "a name without commas"),
        ("models: [{name: a, compute_s: 1, gradient_bytes: 1, aliases: [gpt2]}]", "'gpt2' is a name of both"),
        ("models:\n" + 2 * " - {name: a, compute_s: 1, gradient_bytes: 1}\n", "the name 'a' stands there twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write, text, message):
    with pytest.raises(UserError, match=message) as error:
        get_catalogue(write(text))
    assert "\n" not in str(error.value) and "models.yaml" in str(error.value)


def test_gangs_of_language_models_have_their_tensor_part_inside_a_worker():
    jobs, _ = get_workload("acme-like", WorkloadOptions(num_jobs=9000, total_gpus=512, load=0.7))
    kinds = {BUILT_IN.index(kind.name): kind for kind in LLM_KINDS}
    jobs = take(jobs, jobs.num_gpus >= 32)
    assert set(jobs.model.tolist()) == set(kinds) and not jobs.ps.any()
    for model, workers, wide in zip(jobs.model, jobs.workers, jobs.gpus_per_worker, strict=True):
        assert wide == kinds[model].tensor <= 4 and workers % kinds[model].pipeline == 0
    # Gradients of a part of the model, and as much computing per GPU as parameters say.
    small, large = LLM_KINDS[0].profile, LLM_KINDS[-1].profile
    assert small.gradient_bytes == pytest.approx(6_738_415_616 * 2 / 4)
    assert large.compute_s / small.compute_s == pytest.approx(68_976_648_192 / 6_738_415_616 / 8)
