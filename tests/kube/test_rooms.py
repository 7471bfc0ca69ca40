"""Plans are made without input or output: what the rooms below `kube.cluster` may not import."""

import ast
from pathlib import Path

import pytest

from jaxsched import kube

ROOT = Path(kube.__path__[0])
PURE = [ROOT / "policy.py"]
PURE += [path for room in ("read", "capacity", "plan", "whatif") for path in sorted((ROOT / room).glob("*.py"))]
IO = ("jaxsched.kube.cluster", "kubernetes", "prometheus_client", "urllib3", "http", "socket", "os", "pathlib")


@pytest.mark.parametrize("path", PURE, ids=lambda path: f"{path.parent.stem}.{path.stem}")
def test_pure_rooms_import_no_io(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert not any(name == one or name.startswith(f"{one}.") for one in IO), name
