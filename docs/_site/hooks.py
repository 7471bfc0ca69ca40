"""What MkDocs does not do by itself: pages from files outside of docs/, and a reference page for every module.

Links between files are written so that they work in a checkout. A link that leaves docs/ leads, on the site, to the
page that is made of that file, or to a copy of it. The functions without `on_` need no MkDocs.
"""

import ast
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
COPIES = "files"  # where copies of other files lie
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)]*)?(\))")
FENCE = re.compile(r"(^```.*?^```[ ]*$)", re.S | re.M)


def modules(root: Path = ROOT) -> list[str]:
    """All public modules of the package, as they are imported; packages before what is in them."""
    paths = sorted((root / "jaxsched").rglob("*.py"))
    found = [path.relative_to(root).with_suffix("").parts for path in paths]
    names = [".".join(parts[:-1] if parts[-1] == "__init__" else parts) for parts in found]
    return sorted(name for name in names if not any(part.startswith("_") for part in name.split(".")))


def module_page(module: str) -> str:
    """The page of a module, below docs/."""
    return f"reference/{module}.md"


def reference(root: Path = ROOT) -> dict[str, str]:
    """Markdown of every page of the reference."""
    pages = {module_page(module): f"::: {module}\n" for module in modules(root) if module != "jaxsched"}
    return {"reference/index.md": _front(root), "reference/commands.md": _commands(root)} | pages


def _front(root: Path) -> str:
    stub = (root / "jaxsched/__init__.pyi").read_text(encoding="utf-8")
    names = sorted(re.findall(r"^from (\S+) import (\w+) as", stub, re.M), key=lambda found: found[1].lower())
    rows = [f"| [`jaxsched.{name}`][{home}.{name}] | `{home}` |" for home, name in names]
    lines = ["# Reference", "", "What `import jaxsched` gives, each found when it is first used:", ""]
    rooms = dict.fromkeys(module.split(".")[1] for module in modules(root) if "." in module)
    lines += ["| name | from |", "|---|---|", *rows, "", "All modules, by room:", ""]
    for room in rooms:
        inside = [module for module in modules(root) if module.split(".")[1:2] == [room]]
        links = [f"[{module.removeprefix('jaxsched.')}]({module}.md)" for module in inside]
        lines.append(f"- {', '.join(links)}")
    return "\n".join([*lines, ""])


def _commands(root: Path) -> str:
    """The help of every command."""
    found = {}
    for path in (root / "jaxsched/cli").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])).endswith("HELP"):
                command = path.stem if name == "HELP" else name.removesuffix("_HELP").lower()
                found[command] = ast.literal_eval(node.value).strip()
    lines = ["# Commands", "", "`jaxsched COMMAND --help` adds the options.", ""]
    for command in sorted(found):
        lines += [f"## jaxsched {command}", "", "```text", found[command], "```", ""]
    return "\n".join(lines)


def origin(page: str) -> str:
    """Where the text of a page stands in the checkout."""
    for file, name in PAGES.items():
        if name == page:
            return file
    return page.removeprefix(f"{COPIES}/") if page.startswith(f"{COPIES}/") else f"docs/{page}"


def site_place(file: str) -> str:
    """Where a file of the checkout is on the site, as a source of MkDocs."""
    return PAGES.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else f"{COPIES}/{file}")


def linked(text: str, page: str) -> Iterator[tuple[re.Match[str], str]]:
    """Every link of a page to a file of the checkout, and that file."""
    for match in LINK.finditer(text):
        if "://" not in match[2] and not match[2].startswith("mailto:"):
            file = posixpath.normpath(posixpath.join(posixpath.dirname(origin(page)), match[2]))
            yield match, f"{file}/README.md" if (ROOT / file / "README.md").is_file() else file


def with_site_links(text: str, page: str) -> str:
    """The page's text with links as they are on the site; code stays as it is."""
    return "".join(part if part.startswith("```") else _relinked(part, page) for part in FENCE.split(text))


def _relinked(text: str, page: str) -> str:
    done, at = [], 0
    for match, file in linked(text, page):
        target = posixpath.relpath(site_place(file), posixpath.dirname(page) or ".")
        done += [text[at : match.start()], match[1], target, match[3] or "", match[4]]
        at = match.end()
    return "".join([*done, text[at:]])


def copied(texts: dict[str, str]) -> set[str]:
    """Files outside of docs/ that pages link to and that are no pages themselves."""
    files = {file for page, text in texts.items() for part in FENCE.split(text) for _, file in linked(part, page)}
    return {file for file in files if site_place(file).startswith(f"{COPIES}/") and (ROOT / file).is_file()}


def on_config(config: Any) -> Any:
    """The reference's and the decisions' part of the navigation."""
    by_room: dict[str, list[Any]] = {}
    for module in modules():
        if module != "jaxsched":
            name = module.removeprefix("jaxsched.")
            by_room.setdefault(name.split(".")[0], []).append({name: module_page(module)})
    rooms = [{room: pages} if len(pages) > 1 else pages[0] for room, pages in by_room.items()]
    decisions = sorted(path.name for path in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    filled = {
        "reference": ["reference/index.md", {"Commands": "reference/commands.md"}, *rooms],
        "decisions": ["decisions/README.md", *(f"decisions/{name}" for name in decisions)],
    }
    config.nav = [{title: filled.get(str(what), what) for title, what in entry.items()} for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """The pages that are made."""
    from mkdocs.structure.files import File

    made = {page: (ROOT / file).read_text(encoding="utf-8") for file, page in PAGES.items()}
    written = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for page, text in (made | reference()).items():
        files.append(File.generated(config, page, content=text))
    for file in sorted(copied(made | written)):
        files.append(File.generated(config, site_place(file), content=(ROOT / file).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that leave docs/."""
    return markdown if page.file.src_uri.startswith("reference/") else with_site_links(markdown, page.file.src_uri)
