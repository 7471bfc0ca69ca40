"""YAML files of users: cluster files and training configurations."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from jaxsched.errors import UserError


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, of which PyYAML silently keeps the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, Hashable) and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: str | Path, example: str) -> Any:
    """The content of a YAML file, None if it is empty.

    Raises UserError with the line for what is not YAML or has a key twice; `example` tells where to see a good file.
    """
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; see {example} for an example") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: not YAML: {error.problem}; see {example} for an example") from None
    except (UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not YAML text in UTF-8: {' '.join(str(error).split())}") from None
