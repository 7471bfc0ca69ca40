"""One line, one row: what could hide a row is refused."""

import pytest

from jaxsched.errors import DoubtfulFile, UserError
from jaxsched.io.csv_file import read_table
from jaxsched.workload.datasets import find
from jaxsched.workload.traces import read_trace


@pytest.fixture
def write(tmp_path):
    def write_file(content: bytes):
        path = tmp_path / "table.csv"
        path.write_bytes(content)
        return path

    return write_file


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (b"a,b\n1,2\n", [(2, ["1", "2"])]),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n", [(2, ["1", "2"])]),
        (b"\n a , b \n\n1, 2\n  \n3,\n", [(4, ["1", " 2"]), (6, ["3", ""])]),
        (b'a,b\n"1,2","say ""x"""\n,\n', [(2, ["1,2", 'say "x"']), (3, ["", ""])]),
    ],
)
def test_what_is_read(write, content, rows):
    table = read_table(write(content))
    assert (table.header, table.rows) == (("a", "b"), rows)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b'a,b\n1,"2\n3,4"\n', r'line 2: a quote \("\) that does not match'),
        (b'a,b\n1,2"\n', "line 2: a quote"),
        (b'a,b\n1,x"y"\n', "line 2: a quote"),
        (b'a,b\n"1"x,2\n', "line 2: a quote"),
        (b"a,b\n1\n", r"line 2: 1 cells, should be 2 \(a,b\)"),
        (b"a,b\n1,2,\n", "line 2: 3 cells"),
        (b"a,b,a\n1,2,3\n", "line 1: the column 'a' stands there twice"),
        (b"a,b\r1,2\r", r"line 1, character 4: is the control character U\+000D"),
        (b"a,b\n1,\x00\n", r"line 2, character 3: is the control character U\+0000"),
        ("a,b\n1,\u2028\n".encode(), r"U\+2028"),
        (b"a,b\n1," + b"x" * 5000 + b"\n", "line 2: a cell of more than 4096 characters"),
        (b"a,b\n1,\xff\n", r"is not a text file in UTF-8 \(byte 6\)"),
        (b" \n\n", "is empty"),
    ],
)
def test_what_is_refused(write, content, wanted):
    with pytest.raises(UserError, match=wanted) as error:
        read_table(write(content))
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


def test_a_file_that_may_be_cut_is_doubtful(write):
    with pytest.warns(DoubtfulFile, match=r"line 2: the last line has no newline"):
        assert read_table(write(b"a,b\n1,23")).rows == [(2, ["1", "23"])]


def test_a_stray_quote_in_the_real_trace_loses_no_rows(tmp_path):
    try:
        lines = find("philly").read_text().splitlines(keepends=True)
    except UserError:
        pytest.skip("the public traces are not on this machine")
    at = len(lines) // 2
    lines[at] = lines[at].rstrip("\n").rpartition(",")[0] + ',"' + lines[at].rstrip("\n").rpartition(",")[2] + "\n"
    (tmp_path / "philly.csv").write_text("".join(lines))
    with pytest.raises(UserError, match=f"line {at + 1}: a quote"):
        read_trace(tmp_path / "philly.csv")
