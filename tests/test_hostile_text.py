"""YAML and JSON that are wrong or meant to do harm: one line each, in under a second."""

import time

import pytest

from jaxsched.errors import UserError
from jaxsched.io.json_file import read_json
from jaxsched.io.yaml_file import read_yaml

DEEP = 30_000
YAML = {
    "a list as key": (b"? [a, b]\n: 1\n", ":1: .*a key should be one word or number"),
    "a mapping as key": (b"{a: 1}: 2\n", ":1: .*a key should be one word or number"),
    "a key twice": (b"a: 1\na: 2\n", ":2: .*'a' stands twice"),
    "a timestamp": (b"a: !!timestamp 2001-99-99\n", "the tag .*timestamp, which is not read"),
    "python": (b"a: !!python/object/apply:os.system [x]\n", "the tag .*python"),
    "deep lists": (b"[" * DEEP, "more than 32 levels"),
    "deep entries": (b"- " * 10_000, "more than 32 levels"),
    "deep mappings": (b"{a: " * 8_000, "more than 32 levels"),
    "an alias bomb": (b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", ":1: .*the anchor &a"),
    "an alias of nothing": (b"a: *b\n", ":1: .*the alias \\*b"),
    "400 digits": (b"a: " + b"9" * 400, ":1: .*too large"),
    "5,000 digits": (b"a: " + b"9" * 5000, ":1: .*too large"),
    "a float beyond": (b"a: 1.0e+400", "too large"),
    "octal": (b"a: 010", "without a leading 0"),
    "sexagesimal": (b"a: 1:30", "in digits"),
    "an escaped NUL": (b'a: "x\\0.csv"', r"U\+0000"),
    "NUL": (b"a: x\0", "not YAML: unacceptable character"),
    "half a character": (b'a: "\\ud800"', r"U\+D800"),
    "no UTF-8": (b"\xff\xfea", "is not a text file in UTF-8"),
    "two documents": (b"a: 1\n---\nb: 2\n", "another document"),
    "a large file": (b"# " * 100_000, "is larger than 32,768 bytes"),
}
JSON = {
    "deep lists": (b"[" * 100_000, "more than 64 levels"),
    "deep lists that end": (b"[" * 70 + b"]" * 70, "more than 64 levels"),
    "deep objects": (b'{"a":' * 100_000, "more than 64 levels"),
    "a key twice": (b'{"a": 1, "a": 2}', "'a' stands twice"),
    "400 digits": (b'{"a": ' + b"9" * 400 + b"}", "too large"),
    "5,000 digits": (b"9" * 5000, "too large"),
    "NaN": (b"[NaN]", "NaN should be a finite number"),
    "a float beyond": (b"[1e400]", "should be finite"),
    "half a character": (b'["\\uD800"]', "half of a character"),
    "no UTF-8": (b"\xff", "is not a text file in UTF-8"),
    "nothing": (b"", "line 1: is not JSON"),
    "cut": (b'{"a":\n', "line 2: is not JSON"),
}


def refused(path, content: bytes, read, wanted: str) -> None:
    path.write_bytes(content)
    begin = time.process_time()
    with pytest.raises(UserError, match=wanted) as error:
        read(path)
    assert time.process_time() - begin < 2
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("name", YAML)
def test_yaml(tmp_path, name):
    refused(tmp_path / "a.yaml", YAML[name][0], lambda path: read_yaml(path, "good.yaml"), YAML[name][1])


@pytest.mark.parametrize("name", JSON)
def test_json(tmp_path, name):
    refused(tmp_path / "a.json", JSON[name][0], read_json, JSON[name][1])


def test_the_slowest_good_yaml_takes_less_than_two_seconds(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"[a" + b",a" * 16_000 + b"]")
    begin = time.process_time()
    assert len(read_yaml(tmp_path / "a.yaml", "good.yaml")) == 16_001
    assert time.process_time() - begin < 2


def test_what_is_plain_is_read(tmp_path):
    (tmp_path / "a.yaml").write_text("a: [1, -2.5e-3, true, ~, 2001-01-01, 'x']\n1: yes\n")
    assert read_yaml(tmp_path / "a.yaml", "") == {"a": [1, -0.0025, True, None, "2001-01-01", "x"], 1: True}
    (tmp_path / "a.json").write_text('{"a": [1, -2.5e-3, true, null, "\\u00e9"]}')
    assert read_json(tmp_path / "a.json") == {"a": [1, -0.0025, True, None, "é"]}


def test_numbers_of_yaml_may_be_powers_of_ten(tmp_path):
    (tmp_path / "a.yaml").write_text("[1e2, 1.5E+3, -2e-3, 1.0e2, 1, 1.5, 1e, e2, 1e2x]")
    read = read_yaml(tmp_path / "a.yaml", "good.yaml")
    assert read == [100.0, 1500.0, -0.002, 100.0, 1, 1.5, "1e", "e2", "1e2x"]
