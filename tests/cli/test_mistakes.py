"""A mistake is one line on stderr, exit code 2, no traceback, and no file left behind."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsched.cli import cluster, evaluate
from jaxsched.cli.errors import first_paragraph
from jaxsched.cli.main import COMMANDS, command_of, main
from jaxsched.cluster.presets import preset_names
from jaxsched.env.queues import ORDERS, SWITCHES
from jaxsched.policies.spec import FORWARDS, NAMES
from tests.support.commands import refused

QUICKSTART = str(Path(__file__).parents[2] / "checkpoints/quickstart")
HEADER = "job_id,submit_time_s,num_gpus,duration_s,model\n"
WIDE = "job_id,submit_time_s,num_gpus,duration_s,gpus_per_worker\n"
GOOD = HEADER + "a,0,1,60,vgg16\nb,30,2,60,vgg16\n"


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("id,when\n1,2\n", ("line 1", "header")),
        (HEADER + "a,0,1,nan,vgg16\n", ("no job in the file", "1 row left out (no run time)")),
        (HEADER + "a,0,1,60,vgg16\nb,1,1,-5,vgg16\n", ("line 3", "duration_s", "'-5'")),
        (HEADER + "a,0,1,60,vgg61\n", ("line 2", "model", "'vgg61'")),
        (HEADER + "a,0,999,60,vgg16\nb,5,999,60,vgg16\n", ("no job fits the cluster", "999 GPUs")),
        (
            WIDE + "a,0,16,60,8\nb,5,8,60,8\n",
            ("the smallest worker has 8 GPUs, the largest GPU group 4", "groups: [8]"),
        ),
        ("", ("empty",)),
    ],
)
def test_bad_traces(capsys, tmp_path, text, wanted):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    said = refused(
        capsys, "simulate", "--workload", trace, "--jobs-out", tmp_path / "jobs.csv", "--json", tmp_path / "o.json"
    )
    assert all(piece in said for piece in wanted), said
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["evaluate", "--workload", "missing.csv"], "missing.csv: no such file"),
        (["check", "missing"], "missing: no such file or folder"),
        (["placement", "fit", "--data", "missing.csv", "--out", QUICKSTART], "holds something else"),
        (["interference", "fit", "--data", "missing.csv", "--out", QUICKSTART], "holds something else"),
        (["sweep", "missing.yaml", "--memory"], "--memory: is for --plan"),
        (["bench", "--clusters", "--no-training"], "--clusters, --num-envs: should name at least one each"),
        (["evaluate", "--workload", "nix"], "unknown 'nix'"),
        (["evaluate", "--policies", "nix"], "unknown policy 'nix'"),
        (["evaluate", "--worlds", "nix"], "worlds: unknown family 'nix'; known are any, wide,"),
        (["evaluate", "--worlds", "any:0"], "'0' should be a number of worlds from 1 to 10,000"),
        (["evaluate", "--worlds", "any:-1"], "'-1' should be a number of worlds"),
        (["evaluate", "--worlds", "any:2:test"], "should be NAME, NAME:COUNT or NAME:COUNT:training"),
        (["evaluate", "--worlds", "any", "--cluster", "leaf-spine-8"], "--cluster: does not go with --worlds"),
        (["evaluate", "--worlds", "any", "--load", "0.5"], "--load: does not go with --worlds"),
        (["evaluate", "--worlds", "any", "--models", "x.yaml"], "--models: does not go with --worlds"),
        (["evaluate", "--worlds", "any", "--report", "x.html"], "--report: does not go with --worlds"),
        (
            ["evaluate", "--worlds", "any:1", "--policies", "pack", "--knows", "nothing"],
            "world any-0, where the plain rules are always played: ",
        ),
        (["evaluate", "--worlds", "any", "--num-jobs", "1"], "num_jobs: 1 should be at least 2"),
        (["evaluate", "--worlds", "any:9999", "--num-jobs", "9999"], "should have at most 10,000,000 in all"),
        (["evaluate", "--worlds", "any", "--policies", "nix"], "unknown policy 'nix'"),
        (["evaluate", "--worst", "folder"], "--worst: is for --worlds"),
        (["evaluate", "--policies", "no/such/folder"], "no such folder"),
        (["evaluate", "--policies"], "none is given"),
        (["evaluate", "--policies", "search:pack:las+n4"], "searches in the orders fifo, sjf, area only"),
        (
            ["evaluate", "--policies", "search:pack", "--explain", "1", "--report", "x.html"],
            "'search:pack' cannot search",
        ),
        (["evaluate", "--cluster", "leaf-spin-8"], "unknown cluster 'leaf-spin-8'"),
        (["evaluate", "--cluster", "missing.csv"], "missing.csv: no such file"),
        (["evaluate", "--schedulers", "0"], "schedulers"),
        (["evaluate", "--load", "nan"], "load: nan"),
        (["evaluate", "--mix", "heavy"], "unknown mix 'heavy'"),
        (["evaluate", "--mix", "bert,alexnet"], "unknown model 'alexnet'"),
        (["evaluate", "--load", "-1"], "load: -1"),
        (["evaluate", "--load", "x"], "--load: 'x' should be FLOAT"),
        (["evaluate", "--seeds", "0"], "seeds: 0"),
        (["evaluate", "--seed", "-1"], "seed: -1"),
        (["bench", "--policies", "search:pack:sjf"], "'search:pack:sjf': searches"),
        (["evaluate", "--failure-seed", "7"], "failure_seed: says which failures are drawn, but there are none"),
        (["evaluate", "--pair-factors", "0.7", "--interference", "none"], "pair_factors: factors of what jobs add"),
        (["simulate", "--timeline", "x.csv"], "--timeline x.csv: should end in .json"),
        (["evaluate", "--interval-s", "0"], "interval_s: 0"),
        (["evaluate", "--interference", "nix"], "unknown interference model 'nix'"),
        (["evaluate", "--polices", "pack"], "perhaps you meant --policies"),
        (["simulate", "--policy", "greedy-wait:t0"], "'t0' should be"),
        (["simulate", "--json", "no/such/folder/o.json"], "the folder no/such/folder does not exist"),
        (["simulate", "--json", "x" * 300], "File name too long"),
        (["simulate", "--json", "o.json", "--jobs-out", "./o.json"], "is the file of --jobs-out, too"),
        (["simulate", "--workload", "pyproject.toml", "--json", "pyproject.toml"], "would replace a file that the"),
        (["simulate", "--num-jobs", "1000000000000"], "num_jobs: 1000000000000 should be from 1 to 10,000,000"),
        (["evaluate", "--num-jobs", "9000000", "--seeds", "2"], "should be 10,000,000 jobs at most in all"),
        (["evaluate", "--seeds", "1000000000000"], "seeds: 1000000000000"),
        (["evaluate", "--rounds", "1000000000000"], "rounds: 1000000000000 should be at least 1 and at most 65536"),
        (["evaluate", "--max-forwards", "-1"], "max_forwards: -1 should be a whole number from 0 to 127"),
        (["simulate", "--max-forwards", "128"], "max_forwards: 128 should be"),
        (["simulate", "--max-forwards", "1.5"], "--max-forwards: invalid literal for int"),
        (["train", "--out", "x", "--max-forwards", "-1"], "env: max_forwards: -1 should be a whole number"),
        (["evaluate", "--interval-s", "1e-300"], "interval_s: 1e-300 should be from 1e-06 to 1e+09 s"),
        (["evaluate", "--duration-error", "1e300"], "duration_error: 1e+300"),
        (["evaluate", "--load", "1e-300"], "load: 1e-300 should be a number from"),
        (["evaluate", "--mean-duration-s", "1e300"], "mean_duration_s: 1e+300 makes run times"),
        (["evaluate", "--cluster", "x" * 5000 + ".csv"], "File name too long"),
        (["evaluate", "--workload", "x" * 5000 + "/y"], "File name too long"),
        (["evaluate", "--policies", "x" * 5000 + "/y"], "no such folder"),
        (["train", "--out", "pyproject.toml"], "--out pyproject.toml: is a file, should be a folder"),
        (["train", "--out", "pyproject.toml/run"], "pyproject.toml is a file, should be a folder"),
        (["check"], "name at least one file"),
        (["check", "pyproject.toml"], "is of no known kind"),
        (["simulate", "--jobs-out", "."], "is a folder"),
        (["simulate", "--jobs-out", "jobs.txt"], "jobs.txt: should end in .csv or .parquet"),
        (["simulate", "--failures", "a,b"], "failures: 'a,b' should be MTBF,MTTR"),
        (["evaluate", "--figure", "figure.xyz"], "should end in .png"),
        (["evaluate", "--report", "page.pdf"], "--report page.pdf: should end in .html"),
        (["evaluate", "--picture", "page.png"], "--picture page.png: should end in .svg"),
        (["report", "a.json", "./a.json"], "report: a.json is given twice; give every result once"),
        (["report", "pyproject.toml", "--out", "page.pdf"], "--out page.pdf: should end in .html"),
        (["bench", "--policies", "nix"], "unknown policy 'nix'"),
        (["reproduce", "nix"], "nix: no such file or folder; shipped checkpoints are allocation"),
        (["train"], "give --out FOLDER"),
        (["train", "--out", ""], "--out '': the value is empty"),
        (["train", "--out="], "--out '': the value is empty"),
        (["train", "--out", "x", "--preemption", "yes"], "--preemption: 'yes' should be on or off"),
        (["train", "--out", "x", "--failures", "100"], "failures: '100' should be MTBF,MTTR"),
        (["train", "--out", "no/run", "--trace-gpu", "Z9"], "unknown GPU type 'Z9'"),
        (["train", "--out", "x", "--knows", "nothing"], "knows must be one of runtimes, estimates, history"),
        (["simulate", "--policy", "qssf"], "needs what finished jobs tell"),
        (["train", "--resume", "no/run"], "no/run: no folder state"),
        (["train", "--resume", "no/run", "--out", "x"], "--resume takes no --out"),
        (["train", "--resume", "no/run", "--interval-s", "60"], "--resume takes no --interval-s"),
        (["train", "--out", "no/run", "--interference", "nix"], "unknown interference model 'nix'"),
        (["train", "--out", "no/run", "--load", "-1"], "workload: load: 0: -1.0 should be of type float > 0.0"),
        (["train", "--config", "missing.yaml", "--out", "no/run"], "missing.yaml: no such file"),
        (["evaluat"], "available commands: "),
        (["evaluat"], "perhaps you meant evaluate"),
        ([], "no command is given; available commands: "),
    ],
)
def test_bad_command_lines(capsys, arguments, wanted):
    assert wanted in refused(capsys, *arguments)


def test_a_misspelt_key(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text("ppo: {chunk: 3}\n")
    said = refused(capsys, "train", "--config", tmp_path / "mine.yaml", "--out", tmp_path / "run")
    assert "unknown key 'chunk'; did you mean 'chunks'?" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"]


def test_a_folder_that_is_no_checkpoint(capsys, tmp_path):
    assert "no file card.json" in refused(capsys, "evaluate", "--policies", tmp_path)


def test_a_real_process_says_one_line_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "jaxsched.cli", "evaluate", "--policies", "nix"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env={"JAXSCHED_CACHE": str(tmp_path)})
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("jaxsched: error: unknown policy 'nix'") and done.stderr.count("\n") == 1


def test_help_needs_no_jax():
    code = "import sys\nfrom jaxsched.cli.main import main\ntry:\n  main([{!r}])\nexcept SystemExit:\n  pass\n"
    code += "assert 'jax' not in sys.modules"
    root = Path(__file__).parents[2]
    for argument in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", code.format(argument)], capture_output=True, text=True, cwd=root)
        assert done.returncode == 0, done.stderr


def test_the_overview_says_of_every_command_what_its_help_begins_with(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    said = capsys.readouterr().out
    assert end.value.code == 0
    for name, text in COMMANDS.items():
        assert command_of(name)[1].splitlines()[0] == text and text in said


@pytest.mark.parametrize("command", ["quickstart", "train", "evaluate", "simulate", "bench", "examples"])
def test_every_command_explains_itself_with_examples(capsys, command):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "Examples:" in capsys.readouterr().out


def test_the_help_names_all_policies_and_options():
    words = set(re.findall(r"[\w-]+", evaluate.HELP))
    assert words >= {*NAMES, *ORDERS, *SWITCHES, *FORWARDS}


def test_the_help_names_all_presets():
    assert all(name in cluster.HELP for name in preset_names())


def test_boxes_become_a_line():
    box = "╭─ Oh ──────╮\n│ Wrong: it │\n│ is        │\n│ ───────── │\n│ See help  │\n╰───────────╯\n"
    assert first_paragraph(box) == "Wrong: it is"
    box = "+- Oh ------+\n| Wrong: it |\n| --is      |\n| --------- |\n| See help  |\n+-----------+\n"
    assert first_paragraph(box) == "Wrong: it --is"
    assert first_paragraph("") == ""


@pytest.mark.parametrize("arguments", ["simulate --help", "cluster show leaf-spine-8"])
def test_a_reader_that_has_had_enough_is_no_mistake(arguments, tmp_path):
    """As in `jaxsched ... | head`; the pipe is closed before anything is written."""
    command, root = [sys.executable, "-m", "jaxsched.cli", *arguments.split()], Path(__file__).parents[2]
    environment = {"JAXSCHED_CACHE": str(tmp_path)}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, env=environment)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    assert running.stderr.read() == b"" and running.wait() == 141
    running.stderr.close()


@pytest.mark.parametrize("command", ["evaluate", "simulate"])
def test_no_output_takes_the_place_of_a_file_that_is_read(capsys, tmp_path, command):
    models, policy = tmp_path / "models.yaml", tmp_path / "mine.py"
    models.write_text("models:\n  - {name: mine, compute_s: 0.5, gradient_bytes: 1.0e+6}\n")
    policy.write_text("def rule(key, view, job):\n    return view.free\n")
    option = "--policies" if command == "evaluate" else "--policy"
    for name, path in (("pack", models), (f"{policy}:rule", policy)):
        before = path.read_text()
        said = refused(capsys, command, option, name, "--models", models, "--json", path)
        assert "would replace a file that the command reads" in said and path.read_text() == before


def test_a_policy_file_that_ends_python_or_cannot_be_is_one_line(capsys, tmp_path):
    ends = tmp_path / "ends.py"
    ends.write_text("import sys\nsys.exit(7)\n")
    assert "ends.py fails: SystemExit: 7" in refused(capsys, "evaluate", "--policies", f"{ends}:rule")
    assert "File name too long" in refused(capsys, "evaluate", "--policies", f"{'x' * 5000}.py:rule")


def test_models_of_ones_own_are_known_to_check(capsys, tmp_path):
    models, trace = tmp_path / "models.yaml", tmp_path / "trace.csv"
    models.write_text("models: [{name: hog, compute_s: 0.05, gradient_bytes: 4.0e+9}]\n")
    trace.write_text("job_id,submit_time_s,num_gpus,duration_s,model\na,0,4,600,hog\n")
    assert "line 2, model: 'hog' should be one of the known models" in refused(capsys, "check", trace)
    assert main(["check", "--models", str(models), str(trace), str(models)]) in (None, 0)
    said = capsys.readouterr().out
    assert "format native, of 1 job\n" in said and "models.yaml: 1 model of jobs" in said
    models.write_text("models: [{name: hog}]\n")
    assert "has no compute_s" in refused(capsys, "check", models)


def test_what_pretends_to_be_a_result_is_refused(capsys, tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"policies": 5, "config": {}, "versions": {}}')
    assert "policies: 5 should be of type mapping" in refused(capsys, "check", path)
