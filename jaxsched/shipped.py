"""What comes with the package: checkpoints, configurations and examples. Read-only: runs write elsewhere."""

from pathlib import Path

from jaxsched.errors import UserError

CHECKPOINTS, CONFIGS, EXAMPLES = KINDS = ("checkpoints", "configs", "examples")
_PACKAGE = Path(__file__).parent
_LONGEST = 200  # characters; files cannot have names of any length
_ROOTS = (_PACKAGE, _PACKAGE.parent)  # an installed package holds the folders; a checkout has them beside it


def folder(kind: str) -> Path | None:
    """The folder of a kind of shipped files; None if this copy has none."""
    return next((root / kind for root in _ROOTS if (root / kind).is_dir()), None)


def find(kind: str, name: str) -> Path | None:
    """The shipped file or folder of that name, which is no path; None if there is none."""
    place = folder(kind)
    if place is None or not 0 < len(name) <= _LONGEST or Path(name).name != name:
        return None
    return place / name if (place / name).exists() else None


def resolve(kind: str, name: str) -> Path:
    """The shipped file or folder of that name, or the path. UserError, with the names, if it is neither."""
    found = find(kind, name) or Path(name)
    if not found.exists():
        raise UserError(f"{name}: no such file or folder; shipped {kind} are {', '.join(names(kind))}")
    return found


def names(kind: str) -> tuple[str, ...]:
    """Of all shipped files and folders of a kind, in order; texts about them apart."""
    place = folder(kind)
    return () if place is None else tuple(sorted(path.name for path in place.iterdir() if path.suffix != ".md"))
