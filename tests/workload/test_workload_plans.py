"""Transformers with a plan: what a step costs by hand, what a GPU holds, and what is refused."""

import dataclasses

import msgspec
import numpy as np
import pytest

from jaxsched.calibration.transformer import read_iterations
from jaxsched.errors import UserError
from jaxsched.workload.catalogue import get_catalogue
from jaxsched.workload.jobs import make_job_list
from jaxsched.workload.models import CATALOGUE, profiles
from jaxsched.workload.plans import (
    BYTES_PER_PARAMETER,
    Plan,
    Transformer,
    check_jobs,
    memory_bytes,
    patterns_of,
    profile_of,
)
from jaxsched.workload.traces import read_trace
from jaxsched.workload.transformer import VOCABULARY, iteration_parts, load_constants, make_plans
from tests.support.data import data_dir

SMALL = Transformer(hidden=64, layers=8, heads=4, sequence=100)
PLAN = Plan(tensor=2, data=4, pipeline=2, micro_batch=3, global_batch=24)
FILE = """
models:
  - name: small
    transformer: {hidden: 64, layers: 8, heads: 4, sequence: 100}
    plan: {tensor: 2, data: 4, pipeline: 2, micro_batch: 3, global_batch: 24}
"""


def test_messages_of_a_dense_model_by_hand():
    """Two micro-batches of 300 tokens; a stage of 4 layers."""
    made = patterns_of(SMALL, PLAN)
    activations = 2 * 2 * 300 * 64
    parameters = (12 * 4 * 64**2 + VOCABULARY * 64) / 2
    assert (made.gpus, made.stride, made.size) == (16, (1, 2, 2, 8, 2), (2, 4, 4, 2, 1))
    assert made.nbytes == (1.0 * 4 * 4 * activations, 1.5 * 4 * parameters, 0.0, activations / 2, 0.0)


def test_messages_of_experts_by_hand():
    """Of 8 experts a GPU has two, of which there are two copies; 4 exchanges a layer, each token to two experts."""
    made = patterns_of(
        Transformer(hidden=64, layers=8, heads=4, sequence=100, mlp=128, experts=8, top_k=2),
        Plan(data=8, expert=4, global_batch=8),
    )
    assert (made.stride, made.size) == ((1, 1, 4, 8, 1), (1, 8, 2, 1, 4))
    gradients = 1.75 * 4 * (4 * 8 * 64**2 + VOCABULARY * 64), 1.0 * 4 * 8 * 2 * 2 * 64 * 128
    assert made.nbytes == (0.0, *gradients, 0.0, 4 * 8 * (2 * 100 * 64) * 2 / 4)


def test_gradients_that_domains_sum_up_first_are_no_rings():
    """As many bytes are summed up as a ring of two ranks sends."""
    ring = patterns_of(SMALL, PLAN)
    for kind in ("hierarchical", "tree"):
        made = patterns_of(SMALL, msgspec.structs.replace(PLAN, all_reduce=kind))
        assert made.nbytes == (*ring.nbytes[:1], 0.0, *ring.nbytes[2:]) and made.tree == (kind == "tree")
        assert made.summed == (ring.nbytes[1] / 1.5, 0.0) and ring.summed == (0.0, 0.0)


def test_a_step_computes_what_the_formula_says_of_one_server():
    card = load_constants("fitted")
    made = profile_of("small", SMALL, PLAN, card)
    given = {"hidden": 64, "layers": 8, "heads": 4, "sequence": 100, "global_batch": 24, "micro_batch": 3}
    parts = iteration_parts(card.constants, make_plans(**given, tensor=2, data=4, pipeline=2), server_gpus=16)
    inside = sum(float(part[0]) for name, part in parts.items() if name != "gradients")
    np.testing.assert_allclose(made.compute_s, inside, rtol=1e-6)
    wide = dataclasses.replace(made, name="x").compute_s
    more = profile_of("x", Transformer(hidden=64, layers=8, heads=4, sequence=100, experts=4, top_k=4), PLAN, card)
    assert more.compute_s > wide


def test_measured_plans_fit_the_memory_of_their_gpus():
    folder = data_dir()
    files = [folder / "adaptive" / "vtrain" / name for name in ("single.csv", "multi.csv")] if folder else []
    if not files or not all(file.is_file() for file in files):
        pytest.skip("vTrain's measurements are not here")
    plans, _ = read_iterations(files)
    rows = np.stack([getattr(plans, field.name) for field in dataclasses.fields(plans)], -1).astype(int).tolist()
    names = [field.name for field in dataclasses.fields(plans)]
    assert len(rows) == 1063
    for row in (dict(zip(names, row)) for row in rows):
        model = Transformer(**{name: row[name] for name in ("hidden", "layers", "heads", "sequence")})
        plan = Plan(**{name: row[name] for name in names if name not in ("hidden", "layers", "heads", "sequence")})
        assert memory_bytes(model, plan) < 80e9, row


def test_memory_by_hand():
    """One GPU, one micro-batch: parameters, what goes into 8 layers, and one layer at work."""
    plan = Plan(global_batch=1)
    parameters = 12 * 8 * 64**2 + VOCABULARY * 64
    assert memory_bytes(SMALL, plan) == BYTES_PER_PARAMETER * parameters + 2 * 6400 * 8 + 6400 * 34


@pytest.mark.parametrize(
    ("was", "now", "wrong"),
    [
        ("tensor: 2", "tensor: 3", "tensor 3: should divide heads, 4"),
        ("pipeline: 2", "pipeline: 3", "pipeline 3: should divide layers, 8"),
        ("data: 4", "data: 3", "global_batch 24: should be a multiple of micro_batch times data"),
        ("tensor: 2", "expert: 2", "expert 2: should divide experts, 1"),
        ("sequence: 100", "sequence: 100, experts: 6, top_k: 7", "top_k 7: should be at most experts, 6"),
        ("hidden: 64", "hidden: 32768", "it should be at most gpu_memory_gb, 80"),
        ("tensor: 2", "tensor: 2.5", "2.5 should be of type int"),
        ("tensor: 2", "tensors: 2", "tensors"),
        ("tensor: 2", "all_reduce: star", "all_reduce 'star': should be one of ring, hierarchical, tree"),
        ("    plan: {", "    compute_s: 1\n    plan: {", "leave compute_s out"),
        ("    plan: {", "    step_time: runs/mine\n    plan: {", "has step_time and no gpu_type"),
        ("    plan: {", "    gpu_type: H100\n    plan: {", "has gpu_type H100 and no step_time"),
        ("    transformer", "    aliases", "has no transformer"),
    ],
)
def test_a_wrong_plan_is_one_line(tmp_path, was, now, wrong):
    file = tmp_path / "models.yaml"
    assert was in FILE
    file.write_text(FILE.replace(was, now))
    with pytest.raises(UserError) as error:
        get_catalogue(file)
    assert wrong in str(error.value) and str(file) in str(error.value) and "\n" not in str(error.value)


def test_jobs_have_as_many_gpus_as_the_plan(tmp_path):
    (tmp_path / "models.yaml").write_text(FILE)
    catalogue = get_catalogue(tmp_path / "models.yaml")
    (tmp_path / "jobs.csv").write_text(
        "job_id,submit_time_s,num_gpus,duration_s,model\na,0,16,60,small\nb,9,16,60,small\n"
    )
    jobs, _ = read_trace(tmp_path / "jobs.csv", ps_fraction=1.0, catalogue=catalogue)
    assert jobs.ps.tolist() == [0, 0]  # a plan has none, so none are drawn
    check_jobs(catalogue.models, jobs)
    place = catalogue.index("small")
    for gpus, ps in ((8, 0), (16, 2)):
        bad = make_job_list([0.0, 1.0], 60.0, [16, gpus], ps=[0, ps], model=place, models=place + 1)
        with pytest.raises(
            UserError, match=f"job '1': the plan of its model 'small' has 16 GPUs.*has {gpus} GPUs and {ps}"
        ):
            check_jobs(catalogue.models, bad)


def test_a_catalogue_without_plans_is_what_it_was():
    assert profiles(("V100",), CATALOGUE).plans.gpus.size == 0
