"""Deadlines are read and kept as the log has them, and one that is no deadline is one line."""

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.jobs import make_job_list, rescale_to_load
from jaxsched.workload.traces import read_log, read_trace, write_native
from tests.workload.readers.cases import ITP

NATIVE = "job_id,submit_time_s,num_gpus,duration_s,deadline_s\na,10,1,5,\nb,20,1,5,21\n"


def test_deadlines_of_some_jobs(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(NATIVE)
    jobs, _ = read_trace(path)
    assert jobs.due_s.tolist() == [np.inf, 1]
    write_native(tmp_path / "again.csv", jobs)
    assert read_trace(tmp_path / "again.csv")[0].due_s.tolist() == [np.inf, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NATIVE.replace("21", "20"), "line 3, deadline_s: '20' should be after the submission at 20"),
        (NATIVE.replace("21", "soon"), "line 3, deadline_s: 'soon' should be a finite number"),
        (ITP.replace("3716178", "3715000"), "line 2, deadline: '3715000' should be after the submission at 3715485"),
    ],
)
def test_mistakes(text, said, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_log(path)
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_deadlines_in_python():
    jobs = make_job_list([10, 0], [5, 5], 1, due_s=[7, np.inf])
    assert jobs.due_s.tolist() == [np.inf, 7]
    assert rescale_to_load(jobs, 4, 0.1).due_s.tolist() == [np.inf, 7]
    with pytest.raises(UserError, match="due_s: job 1 has 0, should be above 0"):
        make_job_list([10, 0], [5, 5], 1, due_s=[7, 0])
