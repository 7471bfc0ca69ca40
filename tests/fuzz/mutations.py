"""What goes wrong with files: cut, spliced, mistyped, exported by a spreadsheet, or made to do harm."""

import random
from collections.abc import Callable

CELLS = [
    *("", " ", '"', '""', '"a', 'a"b', "nan", "inf", "-inf", "-1", "0", "-0", "1e300", "1e-300", "1e400", "1e-400"),
    *("1_0", "0x10", "010", "1,5", "1.5", "\u0663", "\uff11\uff12", "\u00b2", "1 2", "+7", "1e3", "true", "null"),
    *("9" * 400, "9" * 5000, "0" * 300 + "1", "None", "#N/A", "=1+1", "a" * 300, "a" * 5000, "P" * 999, "vgg61"),
    *("\x00", "\t", "\u2028", "\x85", "\ufeff", "\u00e9", "\U0001f600", "2147483648", "-2147483649", "4294967296"),
    *("2017-13-45 00:00:00", "2017-10-03", "0001-01-01 00:00:00+23:59", "9999-12-31 23:59:59-23:59"),
    *("2017-10-03T00:00:00Z", "99999999999999999999", "A (batch size 0)"),
]
PIECES = [piece.encode("utf-8", "surrogatepass") for piece in CELLS] + [
    *(b"\n", b"\r", b"\r\n", b",", b",,", b";", b"\xff", b"\xfe\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\x1a", b"\x7f"),
    *(
        b"[" * 3000,
        b"{" * 3000,
        b"- " * 500,
        b"&a [*a]",
        b"*a",
        b"!!python/object:os.system x",
        b"!!timestamp 2001-99-99",
    ),
    *(
        b"? [a, b]\n: 1\n",
        b"<<: {a: 1}\n",
        b"---\n",
        b"...\n",
        b"%YAML 9\n",
        b'"\\ud800"',
        b"\\u0000",
        b"1:30",
        b"1" * 400,
    ),
]

Mutation = Callable[[random.Random, bytes], bytes]


def _place(rng: random.Random, content: bytes) -> int:
    return rng.randrange(len(content) + 1)


def _lines(content: bytes) -> list[bytes]:
    return content.split(b"\n")


def cut(rng: random.Random, content: bytes) -> bytes:
    """The rest of the file is missing."""
    return content[: _place(rng, content)]


def flip(rng: random.Random, content: bytes) -> bytes:
    """One byte is another."""
    at = _place(rng, content)
    return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]


def insert(rng: random.Random, content: bytes) -> bytes:
    """Something stands where nothing should."""
    at = _place(rng, content)
    return content[:at] + rng.choice(PIECES) + content[at:]


def drop(rng: random.Random, content: bytes) -> bytes:
    """A piece is missing."""
    start = _place(rng, content)
    return content[:start] + content[start + rng.choice((1, 1, 2, 5, 40, 400)) :]


def cell(rng: random.Random, content: bytes) -> bytes:
    """A cell, or a value, holds something else."""
    lines = _lines(content)
    row = rng.randrange(len(lines))
    separator = b"," if b"," in lines[row] else b": "
    cells = lines[row].split(separator)
    cells[rng.randrange(len(cells))] = rng.choice(PIECES)
    lines[row] = separator.join(cells)
    return b"\n".join(lines)


def quote(rng: random.Random, content: bytes) -> bytes:
    """A stray quote, at the start or the end of a cell or anywhere."""
    places = [at for at, byte in enumerate(content) if byte in b",\n"] or [0]
    at = rng.choice(places) + rng.randrange(2)
    return content[:at] + b'"' + content[at:]


def twice(rng: random.Random, content: bytes) -> bytes:
    """A line, or a column, stands there twice."""
    lines = _lines(content)
    if rng.random() < 0.5:
        return b"\n".join([*lines, lines[rng.randrange(len(lines))]])
    column = rng.randrange(8)
    return b"\n".join(line + b"," + line.split(b",")[min(column, line.count(b","))] if line else line for line in lines)


def swap(rng: random.Random, content: bytes) -> bytes:
    """Two lines have changed places."""
    lines = _lines(content)
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def ends(rng: random.Random, content: bytes) -> bytes:
    """Ends of lines, and what stands before the first, of another system; or no newline at the end."""
    return rng.choice(
        (
            content.replace(b"\n", b"\r\n"),
            content.replace(b"\n", b"\r"),
            content.replace(b"\n", b"\n\n"),
            content.replace(b"\n", b"\n , \n", 1),
            b"\xef\xbb\xbf" + content,
            content.decode("utf-8", "replace").encode("utf-16"),
            content.rstrip(b"\n"),
            content.replace(b",", b";"),
            content.replace(b"\n", b"\x85".decode("latin-1").encode()),
        )
    )


MUTATIONS: tuple[Mutation, ...] = (cut, flip, insert, drop, cell, cell, cell, quote, quote, twice, swap, ends)


def mutated(rng: random.Random, content: bytes) -> bytes:
    """`content` after one to three mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(MUTATIONS)(rng, content)
    return content
