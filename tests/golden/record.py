"""Makes the files of digests: `python -m tests.golden.record [loop jax ...] [--arrays FOLDER]`.

Any tree can be asked: put this folder alone on a path, and `PYTHONPATH=TREE:PARENT python -m golden.record --check`.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxsched.machine import allow_whole_loops

from . import adapter, kinds

HERE = Path(__file__).parent


def path_of(kind: str) -> Path:
    """The file of a kind of golden runs."""
    return HERE / f"{kind}.json"


def key_of(packages: tuple[str, ...]) -> dict[str, str]:
    """What the bits of a result depend on."""
    return {name: adapter.versions()[name] for name in packages}


def read(kind: str) -> dict[str, Any]:
    """The digests of a kind, and what they depend on."""
    return json.loads(path_of(kind).read_text(encoding="utf-8"))


def main() -> None:
    """Record, or compare with what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(kinds.KINDS))
    parser.add_argument("--arrays", type=Path, help="folder for the arrays of every run")
    parser.add_argument("--check", action="store_true", help="write nothing, say what differs")
    parser.add_argument("--only", default="", help="only parts in whose name this regular expression is found")
    options = parser.parse_args()
    allow_whole_loops()  # as tests and commands do: the last bits of some programs hang on it
    wrong = 0
    for kind in options.kinds:
        wrong += one_kind(kind, options)
    sys.exit(bool(wrong))


def one_kind(kind: str, options: argparse.Namespace) -> int:
    """How many runs differ."""
    begin, made, wrong = time.perf_counter(), kinds.KINDS[kind], 0
    recorded = read(kind)["runs"] if options.check else {}
    found, count = {}, 0
    for part in made.parts():
        if not re.search(options.only, part):
            continue
        kept: dict[str, dict[str, np.ndarray]] = {}
        new = made.play(part, lambda name, arrays, kept=kept: kept.__setitem__(name, arrays))
        count += len(new)
        if options.arrays:
            options.arrays.mkdir(parents=True, exist_ok=True)
            flat = {f"{run}|{name}": array for run, arrays in kept.items() for name, array in arrays.items()}
            np.savez_compressed(options.arrays / f"{kind}-{part}.npz", **flat)
        found[part] = made.packed(new)
        if options.check:
            old = made.unpacked(part, recorded[part])
            for name in [name for name in old if old[name] != new.get(name)]:
                wrong += 1
                print(f"differs: {kind} {part} {name}: {old[name]} is now {new.get(name)}", flush=True)
        print(f"{kind} {part}: {count} runs, {time.perf_counter() - begin:.0f} s", flush=True)
    if not options.check and not options.only:
        content = {"made_with": key_of(made.depends_on), "count": count, "runs": found}
        path_of(kind).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{kind}: {count} runs" + (f", {wrong} differ" if options.check else ""), flush=True)
    return wrong


if __name__ == "__main__":
    main()
