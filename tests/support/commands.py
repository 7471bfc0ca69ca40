"""Command lines that must be refused."""

import pytest

from jaxsched.cli.main import main


def refused(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    """What the one line on stderr says after `jaxsched: error: `; exit code 2, and nothing on stdout."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert end.value.code == 2
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("jaxsched: error: "), said.err
    return lines[0].removeprefix("jaxsched: error: ")
