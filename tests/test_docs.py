"""The pages: links lead somewhere, commands and tables say what the code says, every public name has a reference."""

import dataclasses
import importlib.util
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

import jaxsched
from jaxsched.cli.main import command_of
from jaxsched.cluster.presets import ENTRY, File
from jaxsched.cluster.servers import Server
from jaxsched.cluster.topologies import TOPOLOGIES
from jaxsched.kube.cluster.monitoring import Metrics
from jaxsched.workload import catalogue
from jaxsched.workload.traces import FORMATS

ROOT = Path(__file__).parents[1]
FOLDERS = ("*.md", "docs/**/*.md", "examples/*.md", "checkpoints/*.md")
PAGES = sorted(str(path.relative_to(ROOT)) for pattern in FOLDERS for path in ROOT.glob(pattern))
HOW_TO = ["docs/tutorial.md", *(page for page in PAGES if page.startswith("docs/howto/"))]
RESULTS = [page for page in PAGES if page.startswith("docs/results")]
FENCED = re.compile(r"```(\w*)\n(.*?)```", re.S)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def hooks():
    found = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/_site/hooks.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def blocks(page: str, kind: str) -> list[str]:
    return [text for found, text in FENCED.findall(text_of(page)) if found == kind]


def tables(page: str) -> list[list[str]]:
    """The cells of every line of the page's tables."""
    lines = [line for line in FENCED.sub("", text_of(page)).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def anchors(page: str) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", FENCED.sub("", text_of(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, _, anchor in re.findall(r"\]\(([^)\s#]*)(#([^)\s]*))?\)", FENCED.sub("", text_of(page))):
        if "://" in target:
            continue
        file = (ROOT / page).parent.joinpath(target).resolve() if target else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(str(file.relative_to(ROOT))), f"{page}: {target}#{anchor}"


@pytest.mark.parametrize("page", RESULTS)
def test_no_cell_of_the_results_is_long(page):
    assert [cell for line in tables(page) for cell in line if len(cell) > 150] == []


@pytest.mark.parametrize("page", [*HOW_TO, *RESULTS])
def test_commands_are_understood(page):
    for command in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        program, name, *rest = shlex.split(command)
        assert program == "jaxsched"
        tyro.cli(command_of(name)[0], args=rest)


def test_the_tables_name_what_the_code_reads():
    def first_cells(page: str) -> set[str]:
        return {line[0].strip("`") for line in tables(page)}

    native = FORMATS[0]
    assert first_cells("docs/howto/trace.md") - {"column", "---"} == {*native.needs, *native.uses}
    keys = {"key of a server", "key of the file", "---"}
    known = {*ENTRY.__struct_fields__, *File.__struct_fields__} - {"servers"}
    assert first_cells("docs/howto/cluster.md") - keys == known
    assert first_cells("docs/howto/model.md") - {"key", "---"} == set(vars(catalogue)["_KEYS"])
    said = {line[0].strip("`"): set(re.findall(r"`(\w+)`", line[1])) for line in tables("docs/howto/network.md")[2:]}
    other = {"num_servers", "nic_gbits_s"}
    assert said == {kind: set(inspect.signature(make).parameters) - other for kind, make in TOPOLOGIES.items()}


def test_the_table_of_servers_has_their_defaults():
    rows = {line[0].strip("`"): line[1].strip("`") for line in tables("docs/howto/cluster.md")}
    for field in dataclasses.fields(Server):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        default = "none" if default is None else default
        assert rows[field.name] == (f"{default:g}" if isinstance(default, float) else str(default))


def test_the_architecture_names_files_that_exist():
    """Of `path`: `name`, `name` also that the names are in that file or folder."""
    page = FENCED.sub("", text_of("docs/architecture.md"))
    roots = (ROOT / "jaxsched", ROOT / "jaxsched/event_loop/_kernel", ROOT / "tests/oracle", ROOT)
    within = [*roots, ROOT / "jaxsched/env/extensions", ROOT / "jaxsched/io", ROOT / "jaxsched/simulation"]
    for path, names in re.findall(r"`([\w./]+\.py)`(?:: ((?:`\w+`(?:, | and )?)+))?", page):
        found = [root / path for root in within if (root / path).is_file()]
        assert found, path
        text = "".join(file.read_text(encoding="utf-8") for file in found)
        assert [name for name in re.findall(r"\w+", names) if name not in ("and",) and name not in text] == [], path


def test_every_public_name_has_a_page():
    site = hooks()
    pages = site.reference()
    shown = {line.removeprefix("::: ").strip() for text in pages.values() for line in text.splitlines()[:1]}
    for name, home in vars(jaxsched)["_HOMES"].items():
        assert home in shown
        assert f"[`jaxsched.{name}`][{home}.{name}]" in pages["reference/index.md"]
    found = [path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "jaxsched").rglob("*.py")]
    assert {".".join(parts) for parts in found if not any(part.startswith("_") for part in parts)} <= shown
    assert "## jaxsched evaluate" in pages["reference/commands.md"]


def test_links_that_leave_the_pages_lead_to_copies_of_files():
    site = hooks()
    given = "[a](../README.md), [b](../configs/quickstart.yaml#x), [c](semantics.md), [d](decisions/), [e](https://f)"
    expected = (
        "[a](index.md), [b](files/configs/quickstart.yaml#x), [c](semantics.md), [d](decisions/README.md), "
        "[e](https://f)"
    )
    assert site.with_site_links(given, "bound.md") == expected
    assert site.with_site_links("[a](../../README.md)", "howto/trace.md") == "[a](../index.md)"
    assert site.with_site_links("[a](docs/bound.md)", "index.md") == "[a](bound.md)"
    code = "```\n[a](../README.md)\n```"
    assert site.with_site_links(code, "bound.md") == code
    assert site.copied({"bound.md": given}) == {"configs/quickstart.yaml"}


@pytest.mark.slower
def test_code_of_the_pages_runs():
    for page in HOW_TO:
        for code in blocks(page, "python"):
            exec(compile(code, page, "exec"), {})


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(package, reason="the site is built with the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    site = hooks()
    for page in ("index.md", "tutorial.md", *site.reference()):
        assert (tmp_path / "site" / page).with_suffix(".html").is_file(), page
    compare = (tmp_path / "site/reference/jaxsched.evaluation.compare.html").read_text()
    assert 'id="jaxsched.evaluation.compare.compare"' in compare
    assert '<script src="https' not in compare and 'rel="stylesheet" href="https' not in compare


def test_the_page_on_kubernetes_names_every_metric_and_reason():
    page = text_of("docs/kubernetes.md")
    source = "\n".join(path.read_text() for path in sorted((ROOT / "jaxsched/kube").rglob("*.py")))
    reasons = set(re.findall(r'Refusal\(\s*"([A-Z]\w+)"', source))
    assert len(reasons) > 15 and {reason for reason in reasons if f"`{reason}`" not in page} == set()
    collected = list(Metrics().registry.collect())
    names = {one.name + ("_total" if one.type == "counter" else "") for one in collected}
    ours = {name for name in names if not name.startswith("process_")}
    assert set(re.findall(r"`((?:jaxsched|scheduler)_\w+)`", page)) == ours
