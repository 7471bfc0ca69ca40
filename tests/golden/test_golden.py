"""Results stay what they were, bit for bit: digests of runs of commit cd5e0ebd.

What a digest depends on stands in its file; on another kind of machine, or with other versions, nothing can be compared
and tests are skipped. `python -m tests.golden.record KIND` makes a file again, for a change that is meant.
"""

import zlib

import pytest

from tests.golden import kinds, loop, record
from tests.golden.kinds import KINDS
from tests.support.cases import few

SAMPLE = 24  # of a world's runs outside the last tier


def recorded(kind: str, part: str) -> dict[str, str]:
    """The digests of a part; skips the test where they cannot be had."""
    content = record.read(kind)
    here = record.key_of(tuple(content["made_with"]))
    others = [f"{name} {was}, here {here[name]}" for name, was in content["made_with"].items() if here[name] != was]
    if others:
        pytest.skip(f"digests are of {'; '.join(others)}")
    return KINDS[kind].unpacked(part, content["runs"][part])


def differing(old: dict[str, str], new: dict[str, str]) -> list[str]:
    return [name for name, digest in old.items() if new.get(name) != digest]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["plain", "stops", "history-failures", "forwards", "outages"])
def test_a_sample_of_the_event_loop_is_as_it_was(world):
    expected = recorded("loop", world)
    some = sorted(expected, key=lambda spec: zlib.crc32(spec.encode()))[:SAMPLE]
    assert not differing({spec: expected[spec] for spec in some}, loop.play(world, some))


EVERY = [(kind, part) for kind, made in KINDS.items() for part in made.parts()]
IN_JAX = ("waiting@shared", "observing@pairs", "stopping@failures-stops", "rules-elsewhere@failures", "learned@plain")
PLAYED = [(kind, part) for kind, part in EVERY if kind not in ("jax", "loop") or part in IN_JAX]
PLAYED += [(kind, part) for kind, part in EVERY if kind == "loop"][::3]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "part"), few(PLAYED, EVERY))
def test_all_runs_are_as_they_were(kind, part):
    assert not differing(recorded(kind, part), KINDS[kind].play(part))


def test_files_hold_what_is_played():
    """A policy or world that is added is recorded, and each run is in a file once."""
    for kind, made in KINDS.items():
        content = record.read(kind)
        assert set(made.parts()) <= set(content["runs"]), kind
        count = sum(len(made.unpacked(part, rows)) for part, rows in content["runs"].items())
        assert count == content["count"], kind
    packed = record.read("loop")["runs"]
    for world, policies in loop.plan().items():
        rows = {rule: len(row.split()) for rule, row in packed[world].items()}
        assert rows == {rule: sum(loop.rule_of(spec) == rule for spec in policies) for rule in rows}, world
    assert kinds.KINDS.keys() == {path.stem for path in record.HERE.glob("*.json")}
