"""Rows of a trace that have plans: read, written back, and refused."""

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.policies.registry import parse
from jaxsched.simulation.scenario import load_scenario
from jaxsched.simulation.settings import Settings
from jaxsched.simulation.simulate import simulate
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.llm import columns_of, llm_models
from jaxsched.workload.traces import read_trace, write_native

ROWS = """job_id,submit_time_s,num_gpus,duration_s,model,tensor,pipeline,micro_batch,all_reduce
a,0,64,600,llama2_70b,8,,,
b,10,16,600,GPT3_20b,,,2,tree
c,20,8,300,resnet50,,,,
d,30,64,600,llama2_70b,8,4,1,ring
"""


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "large.csv"
    path.write_text(ROWS)
    return path


def test_a_row_has_the_plan_that_it_says_and_else_the_published_one(trace):
    catalogue = get_catalogue(trace)
    jobs, _ = read_trace(trace, catalogue=catalogue, ps_fraction=1.0)
    names = [catalogue.names[place] for place in jobs.model]
    large = "llama2_70b/t8-d2-p4-e1-m1-g64"
    assert names == [large, "gpt3_20b/t4-d4-p1-e1-m2-g64-tree", "resnet50", large]
    assert [catalogue.models[place].patterns is not None for place in jobs.model] == [True, True, False, True]
    assert jobs.ps[:2].tolist() == [0, 0] and jobs.num_gpus.tolist() == [64, 16, 8, 64]
    assert catalogue.models[jobs.model[1]].patterns.tree


def test_a_published_plan_is_that_model(tmp_path):
    path = tmp_path / "large.csv"
    path.write_text("job_id,submit_time_s,num_gpus,duration_s,model,data\na,0,64,600,llama2_70b,4\n")
    made, usual = get_catalogue(path).models[-1], next(one for one in llm_models() if one.name == "llama2_70b_64")
    assert (made.patterns, made.compute_s, made.input_bytes) == (usual.patterns, usual.compute_s, usual.input_bytes)


def test_what_is_written_is_read_again(trace, tmp_path):
    catalogue, again = get_catalogue(trace), tmp_path / "again.csv"
    jobs, _ = read_trace(trace, catalogue=catalogue)
    write_native(again, jobs, catalogue)
    assert again.read_text().splitlines()[1].startswith("a,0.0,64,600.0,llama2_70b,8,2,4,1,1,64,ring,")
    read, known = read_trace(again, catalogue=get_catalogue(again))[0], get_catalogue(again)
    assert [known.names[place] for place in read.model] == [catalogue.names[place] for place in jobs.model]
    for name in ("job_id", "submit_s", "num_gpus", "duration_s", "ps", "home"):
        np.testing.assert_array_equal(getattr(read, name), getattr(jobs, name))
    assert columns_of("llama2_70b_64")["model"] == "llama2_70b_64"


def test_such_a_trace_is_played(trace):
    made = load_scenario("leaf-spine-16", trace, models=str(trace))
    (found,) = simulate([parse("pack:backfill")], made.cluster, made.jobs, Settings(models=str(trace))).values()
    assert np.isfinite(found[0].finish_s).all() and found[0].finish_s.shape == (4,)


def test_without_its_models_it_is_refused(trace):
    with pytest.raises(UserError, match="its rows have plans; name it as the file of models, too") as error:
        read_trace(trace)
    assert str(trace) in str(error.value)


@pytest.mark.parametrize(
    ("was", "now", "wrong"),
    [
        (
            "llama2_70b,8,,,",
            "llama2_70b,8,16,,",
            "line 2, plan: tensor 8 * data 1 * pipeline 16 = 128 GPUs; it should be",
        ),
        ("llama2_70b,8,,,", "llama2_70b,16,5,,", "16 * data 1 * pipeline 5 = 80 GPUs; it should be the 64 of num_gpus"),
        ("llama2_70b,8,,,", "llama2_70b,,,3,", "global_batch 128: should be a multiple of micro_batch times data"),
        ("llama2_70b,8,,,", "llama2_70b,1,1,,", "line 2, plan: a GPU holds 432.8 GB"),
        ("llama2_70b,8,,,", "bert,8,,,", "line 2, model: 'bert' should be one of gpt3_5b, gpt3_20b"),
        ("2,tree", "2,star", "line 3, all_reduce 'star': should be one of ring, hierarchical, tree"),
        ("2,tree", "0,tree", "line 3, micro_batch: '0' should be a whole number >= 1"),
        ("micro_batch,", "micro_batches,", "micro_batches"),
    ],
)
def test_a_wrong_plan_is_one_line(trace, was, now, wrong):
    assert was in ROWS
    trace.write_text(ROWS.replace(was, now))
    with pytest.raises(UserError) as error:
        get_catalogue(trace)
    assert wrong in str(error.value) and str(trace) in str(error.value) and "\n" not in str(error.value)


def test_a_trace_without_plans_is_no_file_of_models(tmp_path):
    path = tmp_path / "plain.csv"
    path.write_text("job_id,submit_time_s,num_gpus,duration_s\na,0,1,1\n")
    with pytest.raises(UserError, match="no row has a plan; it should have some of the columns tensor, data"):
        get_catalogue(path)
