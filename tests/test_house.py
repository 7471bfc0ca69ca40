"""The house stays as it is: ceilings of what a newcomer has to hold in mind, measured from the source.

`python -m tests.test_house` prints the table; `PYTHONPATH=TREE python tests/test_house.py TREE` that of another tree.

How things are counted, each in modules of `jaxsched`:

- Lines and files are those of `.py` files; a folder's files are without its `__init__.py`.
- A switch is an identifier of a module that has it as a name, an attribute, an argument or a keyword of a call.
- A test for None is `is None` or `is not None`, in `env`, `dynamics` and `policies`.
- A function's lines are those from `def` to its end, docstring included; its parameters are all, `self` included.
- A circle is a largest set of modules that all reach each other by imports, also by those for type checkers and within
  functions.
- The training configuration passes through a module that imports it, directly or through others, or that names it, one
  of its parts, or a type of the fields of these.
"""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
SWITCHES = ("preemption", "max_forwards", "knows", "failures", "history", "reserve")
WITHOUT_NONE = ("env", "dynamics", "policies")
CONFIGURATION = "TrainConfig"
LONGEST, MOST_PARAMETERS = 60, 9

# What each measure may be: the aim, and where it is above that today, what it may be until then.
CEILINGS: dict[str, tuple[int, int]] = {
    "files": (290, 290),
    "lines": (35_500, 56_239),
    "files in a folder": (20, 20),
    "functions over 60 lines": (0, 0),
    "functions of more than 9 parameters": (0, 0),
    "tests for None": (60, 60),
    "circles": (0, 0),
    "modules of the training configuration": (25, 25),
    "modules with preemption": (12, 12),
    "modules with max_forwards": (12, 12),
    "modules with knows": (12, 12),
    "modules with failures": (12, 12),
    "modules with history": (12, 12),
    "modules with reserve": (12, 12),
}

Tree = dict[Path, ast.Module]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(root: Path) -> Tree:
    """Every module of the package, by its path in it."""
    package = root / "jaxsched"
    return {path.relative_to(package): ast.parse(path.read_bytes()) for path in sorted(package.rglob("*.py"))}


def lines(root: Path) -> int:
    return sum(len((root / "jaxsched" / path).read_text(encoding="utf-8").splitlines()) for path in modules(root))


def most_files(tree: Tree) -> int:
    folders = [path.parent for path in tree if path.name != "__init__.py"]
    return max(map(folders.count, set(folders)))


def identifiers(module: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.arg | ast.keyword):
            found.add(str(node.arg))
    return found


def count_tests_for_none(module: ast.Module) -> int:
    compared = [node for node in ast.walk(module) if isinstance(node, ast.Compare)]
    pairs = [pair for node in compared for pair in zip(node.ops, node.comparators, strict=True)]
    return sum(
        isinstance(op, ast.Is | ast.IsNot) and isinstance(what, ast.Constant) and what.value is None
        for op, what in pairs
    )


def functions(tree: Tree) -> Iterator[tuple[str, Function]]:
    """Those outside the command line, with where they are."""
    for path, module in tree.items():
        for node in ast.walk(module):
            if isinstance(node, Function) and path.parts[0] != "cli":
                yield f"{path}:{node.lineno} {node.name}", node


def too_long(tree: Tree) -> list[str]:
    return [name for name, node in functions(tree) if int(node.end_lineno or 0) - node.lineno + 1 > LONGEST]


def too_wide(tree: Tree) -> list[str]:
    return [name for name, node in functions(tree) if _parameters(node.args) > MOST_PARAMETERS]


def _parameters(given: ast.arguments) -> int:
    plain = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    return plain + (given.vararg is not None) + (given.kwarg is not None)


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """The sets of modules that reach each other."""
    reached = {name: graph.find_upstream_modules(name) | {name} for name in graph.modules}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in reached}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def modules_of_configuration(tree: Tree, graph: grimp.ImportGraph) -> set[str]:
    """Names of the modules through which the training configuration passes, its own left out."""
    fields = {
        node.name: {name for part in node.body if isinstance(part, ast.AnnAssign) for name in _named(part.annotation)}
        for module in tree.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    types = {CONFIGURATION}
    while more := {name for one in types for name in fields[one] & fields.keys()} - types:
        types |= more
    own = next(path for path, module in tree.items() if any(_defines(node, CONFIGURATION) for node in module.body))
    naming = {_module(path) for path, module in tree.items() if _named(module) & types}
    return (naming | graph.find_downstream_modules(_module(own))) - {_module(own)}


def _named(node: ast.AST) -> set[str]:
    """Names in the code, those of classes that are defined there, and in annotations that are texts."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Constant):
            found.add(str(one.value))
        elif isinstance(one, ast.ClassDef):
            found.add(one.name)
    return found | identifiers(node)


def _defines(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _module(path: Path) -> str:
    return ".".join(("jaxsched", *path.with_suffix("").parts)).removesuffix(".__init__")


@functools.cache
def measures(root: Path = ROOT) -> dict[str, int]:
    """The table: what is measured, and how much there is of it."""
    tree, graph = modules(root), grimp.build_graph("jaxsched", cache_dir=None)
    known = {path: identifiers(module) for path, module in tree.items()}
    spread = {switch: sum(switch in names for names in known.values()) for switch in SWITCHES}
    return {
        "files": len(tree),
        "lines": lines(root),
        "files in a folder": most_files(tree),
        "functions over 60 lines": len(too_long(tree)),
        "functions of more than 9 parameters": len(too_wide(tree)),
        "tests for None": sum(count_tests_for_none(one) for path, one in tree.items() if path.parts[0] in WITHOUT_NONE),
        "circles": len(circles(graph)),
        "modules of the training configuration": len(modules_of_configuration(tree, graph)),
        **{f"modules with {switch}": count for switch, count in spread.items()},
    }


def test_every_measure_has_a_ceiling():
    assert measures().keys() == CEILINGS.keys()


@pytest.mark.parametrize("name", CEILINGS)
def test_the_house_is_no_larger_than_its_ceiling(name):
    aim, today = CEILINGS[name]
    assert measures()[name] <= max(aim, today), f"{name}: more than its ceiling; see who is new in {__name__}.details"


def test_fixtures_that_make_a_test_slow_are_there():
    """A room that is called otherwise would bring its compiling into the first tier."""
    from tests.conftest import COMPILING  # imports JAX

    shared = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/support").glob("*.py"))
    for room, fixtures in COMPILING.items():
        source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / room).rglob("*.py"))
        assert all(f"def {name}(" in source + shared and name in source for name in fixtures), room


def test_what_is_counted():
    """By hand, on a module."""
    body = "if b is None or knows is not None or b is b:\n    g(history=x.failures, y='reserve')"
    module = ast.parse(f"def f(knows, *, b=None):\n  {body}")
    assert identifiers(module) & set(SWITCHES) == {"knows", "history", "failures"} and count_tests_for_none(module) == 2
    code = "def f(self, a, /, b, *c, d, e, g, h, i, **j):\n" + " pass\n" * 60
    tree = {Path("env/a.py"): ast.parse(code), Path("cli/a.py"): ast.parse(code)}
    assert too_long(tree) == too_wide(tree) == ["env/a.py:1 f"] and most_files(tree) == 1
    graph = grimp.ImportGraph()
    for one, other in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")):
        graph.add_import(importer=one, imported=other)
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]
    types = {
        "config": "class TrainConfig:\n  env: Part",
        "part": "class Part: pass",
        "user": "Part()",
        "other": "Whole()",
    }
    graph = grimp.ImportGraph()
    graph.add_import(importer="jaxsched.far", imported="jaxsched.near")
    graph.add_import(importer="jaxsched.near", imported="jaxsched.config")
    tree = {Path(f"{name}.py"): ast.parse(text) for name, text in types.items()}
    found = modules_of_configuration(tree, graph)
    assert found == {f"jaxsched.{name}" for name in ("part", "user", "near", "far")}


def details(root: Path = ROOT) -> Iterator[str]:
    """Who is counted where a name helps."""
    tree, graph = modules(root), grimp.build_graph("jaxsched", cache_dir=None)
    yield from (f"long: {name}" for name in too_long(tree))
    yield from (f"many parameters: {name}" for name in too_wide(tree))
    yield from (f"circle: {', '.join(circle)}" for circle in circles(graph))


if __name__ == "__main__":
    here = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    sys.path.insert(0, str(here))
    for measure, count in measures(here).items():
        print(f"{measure:40} {count:7,}   aim {CEILINGS[measure][0]:6,}")
    print(*details(here), sep="\n")
