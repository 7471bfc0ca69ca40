"""A run's configuration: what is read, and how mistakes are told."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from jaxsched.errors import UserError
from jaxsched.learning.config import (
    TrainConfig,
    from_dict,
    from_saved,
    load_config,
    quickstart_config,
    to_dict,
    validate,
)
from jaxsched.learning.options import PPOConfig
from jaxsched.learning.setting import make_setting
from jaxsched.learning.state import read_saved_config


@pytest.fixture
def read(tmp_path):
    """`text -> config` through a file."""

    def _read(text: str) -> TrainConfig:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return load_config(path)

    return _read


def refused(read, text: str) -> str:
    """The message of the one line that `text` is refused with."""
    with pytest.raises(UserError) as caught:
        read(text)
    message = str(caught.value)
    assert "\n" not in message and "run.yaml" in message
    return message


# -------------------------------------------------------------------------------------------------------------- reading


def test_dict_yaml_and_json_round_trips(config, read):
    for one in (config, TrainConfig(), quickstart_config()):
        assert from_dict(TrainConfig, to_dict(one)) == one
        assert from_dict(TrainConfig, json.loads(json.dumps(to_dict(one)))) == one
        assert read(yaml.safe_dump(json.loads(json.dumps(to_dict(one))))) == one
        assert read(yaml.safe_dump(to_dict(one))) == one


def test_what_is_not_given_stays_as_it_is(read):
    assert read("{}") == TrainConfig()
    with pytest.raises(UserError, match="is empty"):
        read("")
    changed = read("ppo: {gamma: 0.5, num_envs: 32}\nworkload:\n  load: [0.7, 0.9]\n")
    assert changed.ppo == dataclasses.replace(PPOConfig(), gamma=0.5, num_envs=32)
    assert changed.workload.load == (0.7, 0.9) and changed.env == TrainConfig().env


def test_a_run_from_before_is_validated_as_it_was(read):
    """What was saved without a seed of validation was validated on worlds of the training's seed."""
    saved = json.loads(json.dumps(to_dict(dataclasses.replace(TrainConfig(), seed=7))))
    assert from_saved(saved, "it").validation.seed == 0 and read("seed: 7").validation.seed == 0
    del saved["validation"]["seed"]
    assert from_saved(saved, "it").validation.seed is None and from_saved({}, "it").validation.seed is None
    with pytest.raises(UserError, match="it: 3 should be a mapping"):
        from_saved(3, "it")
    with pytest.raises(UserError, match="it: validation: 3 should be a mapping"):
        from_saved({"validation": 3}, "it")


def test_whole_numbers_are_numbers_and_lists_become_hashable(read):
    changed = read("env: {interval_s: 60}\nworkload: {gpu_counts: [[1, 1], [8, 0.5]]}")
    assert changed.env.interval_s == 60.0 and isinstance(changed.env.interval_s, float)
    assert changed.workload.gpu_counts == ((1, 1.0), (8, 0.5))
    hash(changed)


@pytest.mark.slower
def test_the_configs_of_the_project_are_valid():
    folder = Path(__file__).parents[2] / "configs"
    files = sorted(folder.glob("*.yaml"))
    assert files
    for path in files:
        make_setting(load_config(path))


# ------------------------------------------------------------------------------------------------------------- mistakes

MISTAKES = [  # text of the file, what the message must say
    ("ppo: {gama: 0.9}", ["ppo", "'gama'", "'gamma'"]),
    ("pp0: {gamma: 0.9}", ["'pp0'", "'ppo'"]),
    ("env: {contension: [1.0, 1.0]}", ["env", "'contension'", "'contention'"]),
    ("zzzz: 1", ["'zzzz'", "ppo", "workload"]),
    ("1: 2", ["unknown key 1"]),
    ("ppo: {num_envs: 3.5}", ["ppo", "num_envs", "3.5", "int"]),
    ("ppo: {num_envs: many}", ["ppo", "num_envs", "'many'", "int"]),
    ("ppo: {num_envs: true}", ["ppo", "num_envs", "True", "int"]),
    ("ppo: {gamma: true}", ["ppo", "gamma", "True", "float"]),
    ("network: {prior: 1}", ["network", "prior", "bool"]),
    ("env: {cluster: 8}", ["env", "cluster", "str"]),
    ("ppo: {gamma: null}", ["ppo", "gamma", "None"]),
    ("ppo:", ["ppo", "None"]),
    ("ppo: 3", ["ppo", "3"]),
    ("workload: {load: 0.7}", ["workload", "load", "0.7", "list"]),
    ("workload: {load: [0.7]}", ["workload", "load", "2"]),
    ("workload: {load: [0.7, x]}", ["workload", "load", "'x'", "float"]),
    ("workload: {gpu_counts: [[1, 0.5, 3]]}", ["workload", "gpu_counts", "2"]),
    ("ppo: {gamma: .nan}", ["ppo", "gamma", "nan"]),
    ("workload: {load: [0.5, .nan]}", ["workload", "load", "nan"]),
    ("ppo: {gamma: 0.0}", ["ppo", "gamma", "> 0"]),
    ("ppo: {gamma: 1.0}", ["ppo", "gamma", "< 1"]),
    ("ppo: {gamma: .inf}", ["ppo", "gamma", "inf", "< 1"]),
    ("ppo: {gae_lambda: -0.1}", ["ppo", "gae_lambda", ">= 0"]),
    ("ppo: {keep: 0.0}", ["ppo", "keep", "> 0"]),
    ("ppo: {keep: 1.5}", ["ppo", "keep", "<= 1"]),
    ("ppo: {learning_rate: -1.0}", ["ppo", "learning_rate", "> 0"]),
    ("ppo: {num_envs: 0}", ["ppo", "num_envs", ">= 1"]),
    ("ppo: {steps: -1}", ["ppo", "steps", ">= 1"]),
    ("ppo: {chunks: 0}", ["ppo", "chunks", ">= 1"]),
    ("ppo: {minibatches: 100000}", ["ppo", "100000", "minibatches"]),
    ("workload: {load: [1.0, 0.5]}", ["workload", "load", "rising"]),
    ('env: {cluster: "leaf-spine-8\\nservers"}', ["env", "cluster", "in one line"]),
    ("workload: {load: [0.0, 0.5]}", ["workload", "load", "> 0"]),
    ("env: {contention: [-1.0, 0.5]}", ["env", "contention"]),
    ("env: {more_clusters: leaf-spine-8}", ["env", "more_clusters", "'leaf-spine-8'", "list"]),
    ("workload: {home_skew: -1.0}", ["workload", "home_skew", "list"]),
    ("workload: {home_skew: [-1.0, 0.0]}", ["workload", "home_skew", ">= 0"]),
    ("workload: {gang_tilt: [0.5, 0.0]}", ["workload", "gang_tilt", "rising"]),
    ("workload: {pace: [0.0, 1.0]}", ["workload", "pace", "> 0"]),
    ("workload: {pace: [2.0, 1.0]}", ["workload", "pace", "rising"]),
    ("workload: {own: true, trace_gpu: V100}", ["workload", "own", "trace_gpu"]),
    ("workload: {own: true, trace: a.csv}", ["workload", "own", "trace"]),
    ("workload: {mix: heavy}", ["workload", "mix", "'heavy'", "network-heavy"]),
    ("workload: {mix: 'bert,alexnet'}", ["workload", "'alexnet'", "vgg16"]),
    ("env: {rounds: 0}", ["env", "rounds", "at least 1"]),
    ("env: {knows: nothing}", ["env", "knows", "estimates, history", "learned schedulers"]),
    ("env: {restart_s: 5.0}", ["env", "restart_s", "preemption and failures are off"]),
    ("env: {preemption: true, min_run_s: -1.0}", ["env", "min_run_s", "-1.0", "from 0"]),
    ("env: {min_run_s: 5.0}", ["env", "min_run_s", "preemption is off"]),
    ('env: {failures: "100"}', ["env", "failures", "'100'", "MTBF,MTTR"]),
    ('env: {failures: "100,0"}', ["env", "failures", "mean hours out"]),
    ("env: {preemption: true, restart_s: -1.0}", ["env", "restart_s", "-1.0", "from 0"]),
    ("queue: {order: gittins}", ["queue", "order", "fifo", "event loop"]),
    ("machine: {path: tpu}", ["machine", "path", "auto, cpu, accelerator"]),
    ("queue: {window: 0}", ["queue", "window", ">= 1"]),
    ("queue: {order: tallest}", ["queue", "order", "fifo"]),
    ("validation: {every: 0}", ["validation", "every", ">= 1"]),
    ("[1, 2]", ["[1, 2]", "mapping"]),
    ("just text", ["'just text'", "mapping"]),
    ("a: [1", ["YAML"]),
]


@pytest.mark.parametrize(("text", "words"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_is_one_line_with_file_key_and_what_is_right(read, text, words):
    message = refused(read, text)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "text",
    [
        "ppo: {learning_rate: .inf}",
        "ppo: {clip: -0.1}",
        "ppo: {entropy: .inf}",
        "ppo: {value_weight: -1.0}",
        "ppo: {max_grad_norm: 0.0}",
        "ppo: {critic_only_chunks: -1}",
        "ppo: {restart_share: 5.0}",
        "ppo: {restart_share: -1.0}",
        "reward: {scale: 0.0}",
        "reward: {scale: -1.0}",
        "reward: {team_share: 3.0}",
        "env: {running_slots: 0}",
        "env: {queue_slots: 0}",
        "env: {contention: [1.0, .inf]}",
        "workload: {load: [0.5, .inf]}",
        "workload: {jobs: 0}",
        "workload: {jobs: -3}",
        "network: {width: 0}",
        "network: {exchange_rounds: -1}",
        "validation: {jobs: 0}",
        "validation: {load: -1.0}",
        "seed: 100000000000000000000",
        "[]",
        "ppo: {gamma: 0.9, gamma: 0.8}",
    ],
)
def test_a_number_without_sense_is_refused(read, text):
    refused(read, text)


SET_UP = [  # refused only when the run is set up, and without the file's name
    ("env: {interval_s: 0.0}", "interval_s"),
    ("env: {interval_s: .inf}", "interval_s"),
    ("env: {schedulers: 0}", "schedulers"),
    ("env: {schedulers: 99}", "schedulers"),
    ("env: {cluster: leaf-spin-8}", "'leaf-spin-8'"),
    ("env: {cluster: nowhere.csv}", "nowhere.csv"),
    ("workload: {gpu_counts: [[3, 1.0]]}", "gpu_counts"),
    ("workload: {gpu_counts: []}", "gpu_counts"),
    ("workload: {gpu_counts: [[1, -0.5]]}", "gpu_counts"),
    ("workload: {mean_duration_s: -1.0}", "mean_duration_s"),
    ("workload: {mean_duration_s: 100000.0}", "mean_duration_s"),
    ("workload: {duration_cap_s: 0.0}", "duration_cap_s"),
    ("workload: {ps_fraction: 2.0}", "ps_fraction"),
    ("workload: {burstiness: 0.5}", "burstiness"),
    ("env: {more_clusters: [leaf-spin-8]}", "'leaf-spin-8'"),
]


@pytest.mark.parametrize(("text", "word"), SET_UP, ids=[text for text, _ in SET_UP])
def test_a_mistake_in_cluster_or_workload_is_one_line(read, text, word):
    with pytest.raises(UserError) as caught:
        make_setting(read(text))
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_a_power_of_ten_needs_no_point(read):
    assert read("ppo: {learning_rate: 1e-3}").ppo.learning_rate == 1e-3


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00a")
    for name in ("nowhere.yaml", "binary.yaml", "."):
        with pytest.raises(UserError) as caught:
            load_config(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


def test_validate_names_where():
    with pytest.raises(UserError, match=r"^here: ppo: gamma"):
        validate(dataclasses.replace(TrainConfig(), ppo=dataclasses.replace(PPOConfig(), gamma=2.0)), "here")


def test_the_config_of_a_run_that_is_none(tmp_path):
    with pytest.raises(UserError, match="state"):
        read_saved_config(tmp_path / "state")
    assert not (tmp_path / "state").exists()
