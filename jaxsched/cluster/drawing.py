"""Servers and their GPUs as a small picture (SVG), for notebooks: a box per server, a square per GPU.

Sockets stand one below the other in a server, servers side by side, partitions in rows of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np
from jaxtyping import Int

SIDE, GAP, PAD, HEAD, WIDTH = 10, 2, 4, 16, 720  # pixels
MOST_SERVERS = 256
FREE, PARTLY = "#ffffff", "#bdbdbd"

Fill = Callable[[int, int, int], Sequence[str]]  # (partition, server, socket) -> a colour per GPU


def hue(number: int) -> str:
    """A colour of its own for every small number: the golden angle apart, in three shades."""
    return f"hsl({number * 137.5 % 360:.0f} 60% {45 + 15 * (number % 3)}%)"


def servers_svg(
    gpus: Int[np.ndarray, "P N K"], fill: Fill, titles: Sequence[str], key: Mapping[str, str] | None = None
) -> str:
    """The picture. `titles`: a line per partition; `key`: what colours mean. At most `MOST_SERVERS` are drawn."""
    parts, y, drawn = [], 0.0, 0
    real = gpus.sum(-1) > 0
    for p, title in enumerate(titles):
        if not real[p].any() or drawn >= MOST_SERVERS:
            continue
        y += HEAD
        parts.append(_text(0, y - 4, title))
        x, tall = 0, 0
        for n in np.flatnonzero(real[p]).tolist()[: MOST_SERVERS - drawn]:
            sockets = [fill(p, n, k) for k in range(gpus.shape[2]) if gpus[p, n, k] > 0]
            wide = 2 * PAD + max(map(len, sockets)) * (SIDE + GAP) - GAP
            if x and x + wide > WIDTH:
                x, y, tall = 0, y + tall + PAD, 0
            parts.append(_server(x, y, wide, sockets))
            x, tall = x + wide + PAD, max(tall, 2 * PAD + len(sockets) * (SIDE + GAP) - GAP)
            drawn += 1
        y += tall + PAD
    left = int(real.sum()) - drawn
    if left:
        y += HEAD
        parts.append(_text(0, y - 4, f"and {left:,} more servers"))
    x = 0
    for name, colour in (key or {}).items():
        parts.append(_square(x, y + PAD, colour) + _text(x + SIDE + PAD, y + PAD + SIDE - 1, name))
        x += SIDE + 3 * PAD + 7 * len(name)
    y += HEAD + PAD if key else 0
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y:.0f}" role="img" font-size="11"'
    return f'{head} font-family="sans-serif"><title>{escape("; ".join(titles))}</title>{"".join(parts)}</svg>'


def _server(x: float, y: float, wide: float, sockets: Sequence[Sequence[str]]) -> str:
    tall = 2 * PAD + len(sockets) * (SIDE + GAP) - GAP
    box = f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" rx="2" fill="#eeeeee" stroke="#888888"/>'
    at = [
        _square(x + PAD + column * (SIDE + GAP), y + PAD + row * (SIDE + GAP), colour)
        for row, colours in enumerate(sockets)
        for column, colour in enumerate(colours)
    ]
    return box + "".join(at)


def _square(x: float, y: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="{colour}" stroke="#555555"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
