import time

import numpy as np
import pytest

from jaxsched.errors import UserError
from jaxsched.workload.jobs import ENDS, JobList
from jaxsched.workload.models import MODEL_NAMES, model_index
from jaxsched.workload.traces import read_trace, write_native

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\n"
)
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
NATIVE = "job_id,submit_time_s,num_gpus,duration_s\n"
NATIVE_MILLI = "job_id,submit_time_s,num_gpus,duration_s,gpu_milli\n"
NATIVE_ENDED = "job_id,submit_time_s,num_gpus,duration_s,ended\n"
NATIVE_ALL = "job_id,submit_time_s,num_gpus,duration_s,model,num_workers,num_ps,gpus_per_worker\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text: str):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write_file


def test_philly(write):
    text = (
        PHILLY
        + "2017-10-03 00:01:00,30.0,8,240.0,bb\n2017-10-03 00:00:00,60.0,1,60.0,aa\n2017-10-04 00:00:00,5,2,10,bb\n"
    )
    jobs, skipped = read_trace(write(text))
    assert jobs.submit_s.tolist() == [0, 60, 86400] and jobs.duration_s.tolist() == [60, 30, 5]
    assert jobs.workers.tolist() == [1, 8, 2] and jobs.gpus_per_worker.tolist() == [1, 1, 1]
    assert jobs.tenant[1] == jobs.tenant[2] != jobs.tenant[0]
    assert jobs.home.tolist() == [0, 1, 2] and skipped == {}
    assert jobs.job_id.tolist() == ["1", "0", "2"]  # the row's place in the file


def test_muri_is_in_milliseconds(write):
    rows = "7,1,0,10,dqn,128,2868294000,0,490,446,8,0,1\n8,4,1500,10,shufflenet_v2_x1_0,128,2500,0,886,703,62,17,0\n"
    jobs, _ = read_trace(write(MURI + rows))
    assert jobs.submit_s.tolist() == [0.0, 1.5] and jobs.duration_s.tolist() == [2868294.0, 2.5]
    assert jobs.model.tolist() == [model_index("dqn"), model_index("shufflenet_v2")]
    assert jobs.workers.tolist() == [1, 4] and jobs.job_id.tolist() == ["7", "8"]


def test_openb_skips_what_is_no_job(write):
    rows = [
        "a,1,1,1,460,,LS,Running,100,160,110",
        "b,1,1,0,0,,LS,Running,0,9,1",
        "c,1,1,1,1000,,LS,Pending,5,9,",
        "d,1,1,1,1000,,LS,Failed,5,9,9",
        "e,1,1,8,1000,,LS,Succeeded,200,300,",  # scheduled, nobody wrote down when
        "f,1,1,1,1000,,LS,Running,5,,6",
    ]
    jobs, skipped = read_trace(write(OPENB + "\n".join(rows)))
    assert jobs.job_id.tolist() == ["a", "e"] and jobs.workers.tolist() == [1, 8]
    assert jobs.submit_s.tolist() == [0, 100] and jobs.duration_s.tolist() == [50, 100]
    assert jobs.milli.tolist() == [460, 1000] and jobs.gpu_demand.tolist() == [0.46, 8.0]
    assert skipped == {"no GPU": 1, "never scheduled": 1, "no positive duration": 1, "never deleted": 1}


def test_native_fractions(write, tmp_path):
    jobs, _ = read_trace(write(NATIVE_MILLI + "a,0,1,10,250\nb,1,2,10,\nc,2,1,5,1000\n"))
    assert jobs.milli.tolist() == [250, 1000, 1000]
    write_native(tmp_path / "copy.csv", jobs)
    assert read_trace(tmp_path / "copy.csv")[0].milli.tolist() == [250, 1000, 1000]


def test_native_with_and_without_details(write):
    jobs, _ = read_trace(write(NATIVE + "x,3.5,4,10\n"))
    assert jobs.workers.tolist() == [4] and jobs.submit_s.tolist() == [3.5]
    rows = "a,0,8,10,vgg16,4,2,2\nb,1,8,10,,,,\nc,2,8,10,bert,,0,4\nd,3,8,10,bert,2,,\n"
    jobs, _ = read_trace(write(NATIVE_ALL + rows), ps_fraction=0.0)
    assert jobs.workers.tolist() == [4, 8, 2, 2] and jobs.gpus_per_worker.tolist() == [2, 1, 4, 4]
    assert jobs.ps.tolist() == [2, 0, 0, 0]
    assert jobs.model[0] == model_index("vgg16") and jobs.model[2] == model_index("bert")


def test_how_jobs_ended(write):
    """Where a trace says it; a word that is none is refused."""
    jobs, _ = read_trace(write(NATIVE_ENDED + "a,0,1,60,failed\nb,1,1,60,\nc,2,1,60,cancelled\n"))
    assert [ENDS[code] for code in jobs.ended] == ["failed", "completed", "cancelled"]
    philly = "timestamp,duration,num_gpus,cluster,status\n2017-10-03 12:00:00,60,1,a,Killed\n"
    assert read_trace(write(philly))[0].ended.tolist() == [ENDS.index("cancelled")]
    with pytest.raises(UserError, match="line 2, ended: 'lost' should be one of completed, cancelled, failed"):
        read_trace(write(NATIVE_ENDED + "a,0,1,60,lost\n"))


def test_native_round_trip(write, tmp_path):
    rng = np.random.default_rng(0)
    rows = "".join(f"j{i},{rng.random() * 1e6!r},{i % 7 + 1},{rng.random() * 1e4 + 1e-3!r}\n" for i in range(50))
    jobs, _ = read_trace(write(NATIVE + rows))
    write_native(tmp_path / "copy.csv", jobs)
    again, _ = read_trace(tmp_path / "copy.csv", seed=9, ps_fraction=0.0)
    for name in JobList.__dataclass_fields__:
        assert getattr(again, name).tolist() == getattr(jobs, name).tolist(), name


def test_seed_mix_and_ps_fraction_fill_the_gaps(write):
    path = write(NATIVE + "".join(f"{i},{i},16,10\n" for i in range(2000)))
    one, again, other = read_trace(path, seed=1)[0], read_trace(path, seed=1)[0], read_trace(path, seed=2)[0]
    assert one.ps.tolist() == again.ps.tolist() != other.ps.tolist()
    assert one.model.tolist() == again.model.tolist() != other.model.tolist()
    assert set(one.ps.tolist()) == {0, 4} and (one.ps > 0).mean() == pytest.approx(0.5, abs=0.05)
    all_ps = read_trace(path, ps_fraction=1.0, mix={"bert": 1.0})[0]
    assert (all_ps.ps == 4).all() and (all_ps.model == model_index("bert")).all()
    assert (read_trace(path, ps_fraction=0.0)[0].ps == 0).all()


def test_draws_do_not_depend_on_the_order_of_lines(write):
    lines = [f"{i},{i},16,10\n" for i in range(50)]
    one, other = (read_trace(write(NATIVE + "".join(some)), seed=1)[0] for some in (lines, lines[::-1]))
    assert one.job_id.tolist() == other.job_id.tolist()
    assert one.model.tolist() == other.model.tolist() and one.ps.tolist() == other.ps.tolist()
    assert one.home.tolist() == other.home.tolist()


def test_byte_order_mark_blank_lines_and_columns_in_another_order(write):
    jobs, _ = read_trace(write("\ufeffduration_s, job_id ,num_gpus,submit_time_s\n10,a,2,0\n\n20,b,1,5\n"))
    assert jobs.job_id.tolist() == ["a", "b"] and jobs.duration_s.tolist() == [10, 20]


ROW_ERRORS = [
    (NATIVE + "a,0,1,10\nb,nan,1,10\n", r"line 3, submit_time_s: 'nan' should be a finite number >= 0"),
    (NATIVE + "a,0,1,inf\n", r"line 2, duration_s: 'inf' should be a finite number > 0"),
    (NATIVE_MILLI + "a,0,2,9,500\n", r"gpu_milli: '500' should be 1000 thousandths"),
    (NATIVE_MILLI + "a,0,1,9,1001\n", r"gpu_milli: '1001' should be 1000 thous"),
    (OPENB + "a,1,1,1,0,,LS,Running,100,160,110\n", r"line 2, gpu_milli: '0' should be a whole number >= 1"),
    (NATIVE + "a,0,1,0\n", r"line 2, duration_s: '0' should be a finite number > 0"),
    (NATIVE + "a,0,1,-5\n", r"line 2, duration_s: '-5' should be"),
    (NATIVE + "a,-1,1,5\n", r"line 2, submit_time_s: '-1' should be a finite number >= 0"),
    (NATIVE + "a,0,0,5\n", r"line 2, num_gpus: '0' should be a whole number >= 1"),
    (NATIVE + "a,0,1.5,5\n", r"line 2, num_gpus: '1.5' should be a whole number >= 1"),
    (NATIVE + "a,0,99999999999,5\n", r"line 2, num_gpus: '99999999999' should be a whole number < 2147483648"),
    (NATIVE + "a,0,many,5\n", r"line 2, num_gpus: 'many' should be a whole number >= 1"),
    (NATIVE + "a,0,1,1_0\n", r"line 2, duration_s: '1_0' should be a finite number"),
    (NATIVE + "a,,1,5\n", r"line 2, submit_time_s: '' should be a finite number"),
    (NATIVE + "a,0,1,5\nb,0,1,5\na,0,1,5\n", r"line 4, job_id: 'a' stands in line 2 already"),
    (NATIVE + ",0,1,5\n", r"line 2, job_id: '' should be a name"),
    (NATIVE + "a,0,1\n", r"line 2: 3 cells, should be 4 \(job_id,submit_time_s"),
    (NATIVE_ALL + "a,0,8,5,alexnet,,,\n", r"line 2, model: 'alexnet' should be one of the known models vgg16,"),
    (NATIVE_ALL + "a,0,8,5,,3,,\n", r"line 2, num_gpus: '8' should be num_workers \* gpus_per_worker = 3 \* 2 = 6"),
    (NATIVE_ALL + "a,0,8,5,,3,,2\n", r"num_gpus: '8' should be num_workers \* gpus_per_worker = 3 \* 2 = 6"),
    (NATIVE_ALL + "a,0,8,5,,,,3\n", r"line 2, num_gpus: '8' should be"),
    (NATIVE_ALL + "a,0,8,5,,9,,\n", r"line 2, num_gpus: '8' should be"),
    (NATIVE_ALL + "a,0,8,5,,,32768,\n", r"line 2, num_ps: '32768' should be a whole number < 32768"),
    (NATIVE + "a,0,1,1e300\n", r"line 2, duration_s: '1e300' should be a run time from 1e-09 to 1e\+12 s"),
    (NATIVE + "a,0,1,1e-300\n", r"line 2, duration_s: '1e-300' should be a run time from 1e-09"),
    (NATIVE + "a,1e300,1,5\n", r"line 2, submit_time_s: '1e300' should be a number <= 1e\+12"),
    (NATIVE + "a,0,\u0663,5\n", r"line 2, num_gpus: '\u0663' should be a whole number"),
    (NATIVE + "a,0,1,5,\n", r"line 2: 5 cells"),
    (NATIVE + "a" * 300 + ",0,1,5\n", r"line 2, job_id: .* should be a name of at most 256 characters"),
    (PHILLY + "0001-01-01 00:00:00+23:59,5,1,5,a\n", r"line 2, timestamp: .* should be a date and time"),
    (PHILLY + "2017-10-03,5,1,5,a\n", r"line 2, timestamp: '2017-10-03' should be a date and time"),
    (NATIVE_ALL + "a,0,8,5,,,-1,\n", r"line 2, num_ps: '-1' should be a whole number >= 0"),
    (
        PHILLY + "yesterday,5,1,5,a\n",
        r"line 2, timestamp: 'yesterday' should be a date and time like 2017-10-03 12:00:00",
    ),
    (PHILLY + "2017-10-03 00:00:00,0,1,5,a\n", r"line 2, duration: '0' should be a finite number > 0"),
    (PHILLY + "2017-10-03 00:00:00,5,0,5,a\n", r"line 2, num_gpus: '0' should be a whole number >= 1"),
    (MURI + "0,1,0,1,lenet,1,1,0,0,0,0,0,0\n", r"line 2, model_name: 'lenet' should be one of"),
    (MURI + "0,1,0,1,bert,1,-1,0,0,0,0,0,0\n", r"line 2, duration: '-1' should be"),
    (OPENB + "a,1,1,x,460,,LS,Running,100,160,110\n", r"line 2, num_gpu: 'x' should be a whole number >= 1"),
    (OPENB + "a,1,1,1,460,,LS,Running,1,9,2\na,1,1,1,460,,LS,Running,1,9,2\n", r"line 3, name: 'a' stands in line 2"),
    (OPENB + "a,1,1,0,0,,LS,Running,1,9,2\n", r"no job in the file, 1 row left out \(no GPU\)"),
    (NATIVE, r"no job in the file"),
    ("", r"the file is empty, should start with a line of column names"),
    ("id,when,gpus\n1,2,3\n", r"line 1: the header 'id,when,gpus' is of no known trace format: native \(job_id,.*muri"),
    (NATIVE.strip() + ",gpus\n", r"line 1: unknown column 'gpus' in a native trace, should be one of job_id"),
    (NATIVE.strip() + ",job_id\n", r"line 1: the column 'job_id' stands there twice"),
]


@pytest.mark.parametrize(("text", "message"), ROW_ERRORS)
def test_errors_say_file_line_field_and_what_is_right(write, text, message):
    path = write(text)
    with pytest.raises(UserError, match=message) as error:
        read_trace(path, strict="no job" not in message)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_missing_file_directory_and_binary(tmp_path):
    with pytest.raises(UserError, match=r"gone.csv: no such file"):
        read_trace(tmp_path / "gone.csv")
    with pytest.raises(UserError, match=r"is a directory, should be a job log"):
        read_trace(tmp_path)
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UserError, match=r"b.csv: is not a text file in UTF-8"):
        read_trace(tmp_path / "b.csv")


def test_bad_options(write):
    path = write(NATIVE + "a,0,1,5\n")
    with pytest.raises(UserError, match=r"ps_fraction: -0\.1"):
        read_trace(path, ps_fraction=-0.1)
    with pytest.raises(UserError, match="unknown mix 'x'"):
        read_trace(path, mix="x")


def test_real_philly(real):
    started = time.perf_counter()
    jobs, skipped = read_trace(real("philly"))
    assert time.perf_counter() - started < 20  # about 2 s on an idle core
    assert len(jobs) == 65_797 and skipped == {}
    assert jobs.submit_s[0] == 0 and jobs.submit_s[-1] == 6_296_000
    assert len(np.unique(jobs.tenant)) == 14
    assert (jobs.num_gpus == 1).sum() == 61_751 and jobs.num_gpus.max() == 32
    assert jobs.duration_s.mean() == pytest.approx(13_151.906, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "rows", "last_s"), [("muri1", 1494, 10_817_570), ("muri2", 5755, 8_572_283), ("muri3", 992, 8_166_025)]
)
def test_real_muri(real, name, rows, last_s):
    jobs, skipped = read_trace(real(name))
    assert len(jobs) == rows and skipped == {} and jobs.submit_s[-1] == last_s
    muri = {"vgg16", "vgg19", "resnet18", "shufflenet_v2", "bert", "gpt2", "a2c", "dqn"}
    assert {MODEL_NAMES[m] for m in jobs.model} == muri


def test_real_openb(real):
    jobs, skipped = read_trace(real("openb"))
    assert len(jobs) == 6203 and skipped == {"no GPU": 1088, "never scheduled": 861}
    assert (jobs.num_gpus > 1).sum() == 74  # the 75th was never scheduled
    assert (jobs.milli < 1000).sum() == 2573 and jobs.milli.min() == 50
