"""A picture of clusters over time, as SVG: one panel per policy, one line per GPU, a bar per job; it can move.

Plain text that any browser draws, and a page on GitHub shows: no library, no script.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

from jaxsched.cluster.hardware import Cluster
from jaxsched.evaluation.timelines import Spans, spans_of
from jaxsched.simulation.outcome import Outcome

WIDTH, LEFT, LINE, GAP, HEAD, FOOT = 900.0, 96.0, 3.6, 3.0, 46.0, 38.0  # pixels; a GPU has a line
TURN_S = 12  # of the animation
# How much slower than alone: light to dark, so that it reads without colours too.
SHADES = ((1.02, "#9ecae1", "as fast as alone"), (1.2, "#6baed6", "up to 1.2x"), (1.6, "#fd8d3c", "up to 1.6x"))
DARKEST = ("#a63603", "slower")
RESTART = ("#54278f", "restarting")
_FONT = 'font-family="Helvetica, Arial, sans-serif"'


def cluster_svg(results: Sequence[Outcome], cluster: Cluster, *, moving: bool = True) -> str:
    """Runs of policies on the same jobs, each as servers over time; `moving`: they fill up from left to right.

    UserError: see `spans_of`.
    """
    spans = [spans_of(result, cluster) for result in results]
    end_s = max((float(one.end_s.max()) for one in spans if len(one.job)), default=1.0)
    rows, height = _rows(cluster)
    panel = HEAD + height
    total = panel * len(results) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {total:.0f}" role="img" {_FONT}>',
        f"<title>{escape(_title(results))}</title>",
        f'<rect width="{WIDTH:g}" height="{total:.0f}" fill="white"/>',
    ]
    if moving:
        grows = (
            f'<animate attributeName="width" from="{LEFT:g}" to="{WIDTH:g}" dur="{TURN_S}s" repeatCount="indefinite"/>'
        )
        parts.append(f'<clipPath id="now"><rect width="{WIDTH:g}" height="{total:.0f}">{grows}</rect></clipPath>')
    for number, (result, own) in enumerate(zip(results, spans)):
        parts.append(f'<g transform="translate(0 {number * panel:.0f})">')
        parts += _panel(result, own, cluster, rows, height, end_s, moving)
        parts.append("</g>")
    restarts = any(result.attempts.restart_s.any() for result in results)
    parts += _foot(panel * len(results), end_s, restarts=restarts)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(cluster: Cluster) -> tuple[dict[tuple[int, int, int], float], float]:
    """Where the line of every GPU lies, by server, group and GPU; and the height of all."""
    server_id, gpus = np.asarray(cluster.server_id), np.asarray(cluster.group_gpus)
    where, y = {}, 0.0
    for p, n in sorted(np.argwhere(server_id >= 0).tolist(), key=lambda place: server_id[tuple(place)]):
        for group, count in enumerate(gpus[p, n].tolist()):
            for gpu in range(count):
                where[int(server_id[p, n]), group, gpu] = y
                y += LINE
        y += GAP
    return where, y


def _panel(
    result: Outcome,
    spans: Spans,
    cluster: Cluster,
    rows: dict[tuple[int, int, int], float],
    height: float,
    end_s: float,
    moving: bool,
) -> list[str]:
    done = result.finished
    mean_min = float(result.jct_s[done].mean()) / 60 if done.any() else float("nan")
    parts = [
        _text(LEFT, 24, f"<tspan font-weight='bold'>{escape(result.policy)}</tspan>", 15),
        _text(WIDTH - 8, 24, f"mean completion time {mean_min:,.0f} min", 13, "end"),
        f'<g transform="translate(0 {HEAD - 10:g})">',
    ]
    servers: dict[int, list[float]] = {}
    for (server, _, _), y in rows.items():
        servers.setdefault(server, []).append(y)
    for server, lines in servers.items():
        tall = max(lines) - min(lines) + LINE
        parts.append(_bar(LEFT, min(lines), WIDTH - LEFT, tall, "#f0f0f0"))
        parts.append(_text(LEFT - 6, (min(lines) + max(lines) + LINE) / 2 + 3.5, f"server {server}", 10, "end"))
    slowdown, restarts_s = result.run_s / result.jobs.duration_s, result.attempts.restart_s
    clip = ' clip-path="url(#now)"' if moving else ""
    parts.append(f'<g stroke="white" stroke-width="0.4"{clip}>')
    scale = (WIDTH - LEFT) / end_s
    for i, job in enumerate(spans.job):
        y = rows[int(spans.server[i]), int(spans.group[i]), int(spans.gpu[i])]
        x, held = LEFT + spans.start_s[i] * scale, (spans.end_s[i] - spans.start_s[i]) * scale
        parts.append(_bar(x, y, held, LINE, _shade(float(slowdown[job]))))
        restart_s = float(restarts_s[spans.attempt[i]])
        if restart_s > 0:
            parts.append(_bar(x, y, restart_s * scale, LINE, RESTART[0]))
    return [*parts, "</g>", "</g>"]


def _foot(y: float, end_s: float, *, restarts: bool) -> list[str]:
    """The time axis and what the shades mean."""
    parts = [_text(LEFT, y + 10, "0 h", 11), _text(WIDTH - 8, y + 10, f"{end_s / 3600:.1f} h", 11, "end")]
    x = LEFT
    shades = [*((colour, text) for _, colour, text in SHADES), DARKEST, *([RESTART] if restarts else [])]
    for colour, text in shades:
        parts += [_bar(x, y + 20, 12, 10, colour), _text(x + 17, y + 29, text, 11)]
        x += 40 + 6.2 * len(text)
    return [*parts, _text(x, y + 29, "one bar per job and GPU; grey: idle", 11)]


def _bar(x: float, y: float, wide: float, tall: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, size: float, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}">{text}</text>'


def _shade(slowdown: float) -> str:
    return next((colour for most, colour, _ in SHADES if slowdown <= most), DARKEST[0])


def _title(results: Sequence[Outcome]) -> str:
    names = " and ".join(result.policy for result in results)
    return f"The GPUs of a cluster over time under {names}, the same jobs each time"
