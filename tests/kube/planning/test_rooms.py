"""Planning stays pure: what it may not import."""

import ast
from pathlib import Path

import pytest

import jaxsched.kube.planning as planning

IO = ("jaxsched.kube.cluster", "kubernetes", "prometheus_client", "urllib3", "http", "socket", "os", "pathlib")


@pytest.mark.parametrize("path", sorted(Path(planning.__path__[0]).glob("*.py")), ids=lambda path: path.stem)
def test_planning_imports_no_io(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert not any(name == one or name.startswith(f"{one}.") for one in IO), name
