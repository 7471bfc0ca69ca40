"""What a scheduled HLO text for a GPU would run: kernels and bytes, loop by loop.

Counted, not timed: the same text gives the same figures to the last digit. A kernel is an instruction that the device
runs at once: a fusion, a reduction, a copy, a call of a library. Its bytes are its results and operands, of which only
the parts count that a slice, gather or scatter within it touches. Of a conditional the dearest branch counts. What a
library is lent as room to work in does not count: products of matrices get 32 MiB each, and hardly touch it.
"""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4,
          "s64": 8, "u64": 8, "f64": 8}  # fmt: skip
_ARRAY = re.compile(rf"\b({'|'.join(_BYTES)})\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NO_KERNEL = {"parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "partition-id",
              "replica-id", "opt-barrier"}  # fmt: skip
_VIEWS = ("bitcast", "reshape")
_LENT = re.compile(r", s8\[\d+\](\{0\})?\)$")  # the last result of a library's product of matrices


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    op: str
    operands: tuple[str, ...]
    attributes: str

    def called(self, key: str) -> list[str]:
        """Names of the computations under this attribute."""
        found = re.search(rf"\b{key}=(?:\{{([^}}]*)\}}|(%?[\w.\-]+))", self.attributes)
        return [name.strip().lstrip("%") for name in (found.group(1) or found.group(2)).split(",")] if found else []


Computations = dict[str, list[Instruction]]


@dataclasses.dataclass
class Loop:
    """A loop of the program, or the program itself: what one turn costs, loops within apart."""

    name: str  # where it comes from, as JAX says
    turns: int | None  # None: goes on until its condition fails, which the host looks at in every turn
    kernels: int = 0
    bytes: int = 0
    within: list["Loop"] = dataclasses.field(default_factory=list)

    def every(self) -> Iterator["Loop"]:
        """This loop and all within."""
        yield self
        for loop in self.within:
            yield from loop.every()


def bytes_of(shape: str) -> int:
    """Bytes of an array or of a tuple of arrays."""
    total = 0
    for kind, sizes in _ARRAY.findall(shape):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        total += count * _BYTES[kind]
    return total


def _closing(text: str) -> int:
    """Where the parenthesis that `text` starts with is closed."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    raise ValueError(f"not closed: {text[:80]}")


def _instruction(line: str) -> Instruction | None:
    found = _LINE.match(re.sub(r"/\*.*?\*/", "", line))
    if found is None:
        return None
    rest = found.group(3)
    end = _closing(rest) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].strip()
    op, _, _ = rest.partition("(")
    arguments = rest[len(op) :]
    end = _closing(arguments)
    operands = tuple(re.findall(r"%([\w.\-]+)", arguments[:end]))
    return Instruction(found.group(2), shape, op, operands, arguments[end + 1 :])


def parse(text: str) -> tuple[Computations, str]:
    """All computations of a module by name, and the name of the first one to run."""
    computations: Computations = {}
    current, entry = "", ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            current = head.group(2)
            computations[current] = []
            entry = current if head.group(1) else entry
        elif line.startswith("}"):
            current = ""
        elif current:
            found = _instruction(line)
            if found:
                computations[current].append(found)
    return computations, entry


def _fusion_bytes(body: list[Instruction], result: str) -> int:
    """What a fused computation reads and writes."""
    inner, users = {one.name: one for one in body}, defaultdict(list)
    for one in body:
        for place, operand in enumerate(one.operands):
            users[operand].append((one, place))
    read, in_place = 0, 0
    for one in body:
        if one.op != "parameter":
            continue
        part, whole, todo = 0, False, [one.name]
        while todo:
            for user, place in users[todo.pop()]:
                if user.op in _VIEWS:
                    todo.append(user.name)
                elif user.op in ("gather", "dynamic-slice", "slice") and place == 0:
                    part += bytes_of(user.shape)
                elif user.op in ("dynamic-update-slice", "scatter") and place == 0:
                    update = user.operands[1 if user.op == "dynamic-update-slice" else -1]
                    in_place += bytes_of(user.shape) - bytes_of(inner[update].shape)
                else:
                    whole = True
        full = bytes_of(one.shape)
        read += full if whole else min(full, part)
    return read + max(bytes_of(result) - in_place, 0)


def _bytes(computations: Computations, one: Instruction, by_name: dict[str, Instruction]) -> int:
    called = one.called("calls")
    if one.op == "fusion" and called and called[0] in computations:
        return _fusion_bytes(computations[called[0]], one.shape)
    lent = _LENT.search(one.shape) if one.op == "custom-call" else None
    return bytes_of(one.shape[: lent.start()] if lent else one.shape) + sum(
        bytes_of(by_name[name].shape) for name in one.operands if name in by_name
    )


def _fill(computations: Computations, name: str, into: Loop) -> None:
    """Add what the computation `name` runs, once, to a loop."""
    body = computations[name]
    by_name = {one.name: one for one in body}
    for one in body:
        if one.op in _NO_KERNEL or one.op.endswith(("-done", "-update")):
            continue
        if one.op == "while":
            source = re.search(r'op_name="([^"]*)"', one.attributes)
            trips = re.search(r'known_trip_count[^\d]*"?(\d+)', one.attributes)
            loop = Loop(source.group(1) if source else one.name, int(trips.group(1)) if trips else None)
            _fill(computations, one.called("body")[0], loop)
            if loop.turns is None:
                _fill(computations, one.called("condition")[0], loop)
            into.within.append(loop)
        elif one.op in ("call", "conditional"):
            names = one.called("to_apply") or one.called("branch_computations")
            names = names or one.called("true_computation") + one.called("false_computation")
            branches = [Loop(one.name, 1) for _ in names]
            for branch, called in zip(branches, names, strict=True):
                _fill(computations, called, branch)
            dearest = max(branches, key=lambda branch: branch.bytes)
            into.kernels, into.bytes = into.kernels + dearest.kernels, into.bytes + dearest.bytes
            into.within += dearest.within
        else:
            into.kernels += 1
            into.bytes += _bytes(computations, one, by_name)


def program(text: str) -> Loop:
    """The program of a scheduled HLO text."""
    computations, entry = parse(text)
    whole = Loop("program", 1)
    _fill(computations, entry, whole)
    return whole
