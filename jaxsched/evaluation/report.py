"""A comparison as one page that needs nothing else: figures, distributions, the cluster over time, every job.

The page (`report_page.html`) is a script of our own and plain HTML. The runs travel in it in little room: JSON and
columns of bytes, deflated, as text. Of every column the first bytes of all numbers come first, then the second ones: so
neighbours are alike, and deflate to half as much. `report_data.js` is the other end.
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Num

from jaxsched.cluster.hardware import Cluster
from jaxsched.env.state import EnvParams
from jaxsched.errors import UserError
from jaxsched.evaluation import tables
from jaxsched.evaluation.decisions import Decision
from jaxsched.evaluation.parts import parts_of
from jaxsched.evaluation.replay import footprints_of
from jaxsched.evaluation.tables import Comparison, PolicyResult
from jaxsched.evaluation.timelines import link_use, spans_of
from jaxsched.io.files import write_text
from jaxsched.simulation.outcome import DONE, NOT_ARRIVED, REJECTED, Attempts
from jaxsched.simulation.settings import Settings, params_for
from jaxsched.workload.jobs import JobList

PAGE = Path(__file__).with_name("report_page.html")
ADDED = ("placement", "sharing", "server", "network", "restarts", "lost")  # of `Parts`: what comes on top
_RUNS = re.compile("<!--RUNS-->.*?<!--END-->", re.S)
MOST_POLICIES = 6  # whose runs a page holds
MOST_LINKS = 40  # the busiest
LINK_PARTS = 400  # of the run, each with a mean use
FULLEST = 255  # per cent of a link's capacity; more is shown as this
MOST_PLACES = 8  # of a decision

Decisions = Mapping[str, Sequence[Decision]]  # by policy, see `decisions_of`


def report_html(comparison: Comparison, cluster: Cluster, decisions: Decisions | None = None) -> str:
    """The page of a comparison whose placements were recorded; of several job lists it shows the first.

    UserError if there are too many policies, and where `spans_of` has one.
    """
    title = " and ".join(row.name for row in comparison.rows)
    return page(title, [(title, summary(comparison))], runs(comparison, cluster, decisions))


def write_report(
    path: str | Path, comparison: Comparison, cluster: Cluster, decisions: Decisions | None = None
) -> None:
    """`report_html` as a file."""
    write_text(path, report_html(comparison, cluster, decisions))


def summary(comparison: Comparison) -> dict[str, Any]:
    """The table of a comparison, as plain values."""
    names, lines = tables.cells(comparison)
    return {"about": _about(comparison), "names": names, "lines": lines, "legend": tables.legend(comparison)}


def runs(comparison: Comparison, cluster: Cluster, decisions: Decisions | None = None) -> dict[str, Any]:
    """The first job list under every policy, as plain values; errors as of `report_html`."""
    check_number(len(comparison.rows))
    first = comparison.rows[0].outcomes[0]
    jobs = first.jobs
    gpus, servers = _gpus(cluster)
    settings = comparison.settings
    params = params_for(cluster, jobs, settings)
    names, user = _users(jobs)
    return {
        "policies": [
            _run(row, cluster, gpus, params, settings) | {"decisions": _decisions((decisions or {}).get(row.name, ()))}
            for row in comparison.rows
        ],
        "jobs": {
            "id": jobs.job_id.tolist(),
            "submit_s": pack_column(jobs.submit_s, np.float64),
            "ideal_s": pack_column(jobs.duration_s, np.float64),
            "gpus": pack_column(jobs.gpu_demand, np.float32),
            "model": _pack_numbers(jobs.model),
            "user": _pack_numbers(user),
        },
        "models": list(first.models),
        "tenants": names,
        "servers": servers,
        "gpus": len(gpus),
    }


def _users(jobs: JobList) -> tuple[list[str], Int[np.ndarray, "J"]]:
    """Their names, and the number of each job's among these; of tenants where the log names no users."""
    names, numbers = np.unique(jobs.user if (jobs.user != "").any() else jobs.tenant_name, return_inverse=True)
    return names.tolist(), numbers


def check_number(policies: int) -> None:
    """UserError if a page cannot hold so many."""
    if policies > MOST_POLICIES:
        raise UserError(f"report: {policies} policies, a page holds at most {MOST_POLICIES}")


def page(title: str, summaries: Sequence[tuple[str, Mapping[str, Any]]], data: Mapping[str, Any] | None) -> str:
    """The page of named `summary`s, and of `runs` if there are any."""
    text = PAGE.read_text(encoding="utf-8")
    if data is None:
        text = _RUNS.sub("", text)
    several = len(summaries) > 1
    parts = {
        "TITLE": escape(title),
        "SUMMARY": "".join(_section(name if several else "", found) for name, found in summaries),
        "UNPACK": SCRIPT.read_text(encoding="utf-8"),
        "DATA": "" if data is None else embed(data),
        "RUNS": "",
        "END": "",
    }
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part)
    return text


def _section(name: str, found: Mapping[str, Any]) -> str:
    head = f"<h3>{escape(name)}</h3>" if name else ""
    legend = "".join(f"<li>{escape(line)}</li>" for line in found["legend"])
    table = _table(found["names"], found["lines"])
    return f'{head}<p class="note">{escape(found["about"])}</p>{table}<ul class="note">{legend}</ul>'


def _gpus(cluster: Cluster) -> tuple[dict[tuple[int, int, int], int], list[int]]:
    """The line of every GPU, by server, group and GPU of the group; and the first line of every server, and the end."""
    server_id, gpus = np.asarray(cluster.server_id), np.asarray(cluster.group_gpus)
    lines: dict[tuple[int, int, int], int] = {}
    first = []
    for p, n in sorted(np.argwhere(server_id >= 0).tolist(), key=lambda place: server_id[tuple(place)]):
        first.append(len(lines))
        for group, count in enumerate(gpus[p, n].tolist()):
            lines |= {(int(server_id[p, n]), group, gpu): len(lines) + gpu for gpu in range(count)}
    return lines, [*first, len(lines)]


def _run(
    row: PolicyResult, cluster: Cluster, gpus: dict[tuple[int, int, int], int], params: EnvParams, settings: Settings
) -> dict[str, Any]:
    result = row.outcomes[0]
    spans, attempts = spans_of(result, cluster), result.attempts
    prints = footprints_of(attempts, result.jobs, cluster, params)
    parts = parts_of(result, cluster, params, prints)
    end_s = max(result.end_s, 1.0)
    links = link_use(attempts, cluster, prints, LINK_PARTS, end_s)
    percent = np.clip(np.rint(100 * links.use[:MOST_LINKS]), 0, FULLEST)
    where = [gpus[place] for place in zip(spans.server.tolist(), spans.group.tolist(), spans.gpu.tolist())]
    return {
        "name": row.name,
        "start_s": pack_column(np.nan_to_num(result.start_s, nan=-1.0), np.float64),
        "finish_s": pack_column(np.nan_to_num(result.finish_s, nan=-1.0), np.float64),
        "end_s": end_s,
        "came": pack_column((~np.isin(result.status, (REJECTED, NOT_ARRIVED))).astype(np.uint8), np.uint8),
        "attempts": None if result.logged is None else _attempts(attempts, settings),
        "gpu": _pack_numbers(np.array(where, np.int32)),
        "parts": {name: pack_column(np.nan_to_num(getattr(parts, f"{name}_s")), np.float32) for name in ADDED},
        "links": {
            "names": links.names[:MOST_LINKS],
            "end_s": end_s,
            "percent": pack_column(percent.reshape(-1), np.uint8),
        },
    }


def _attempts(attempts: Attempts, settings: Settings) -> dict[str, Any]:
    """Every attempt, in order of start; where jobs have one each the page makes them of starts and ends.

    Of an attempt that ends its job only the start stands here; the end is the job's `finish_s`.
    """
    return {
        "job": pack_column(attempts.job, np.int32),
        "start": pack_column(np.rint(attempts.start_s / settings.interval_s), np.int32),
        "interval_s": settings.interval_s,
        "held_s": pack_column(np.where(attempts.ended == DONE, 0.0, attempts.end_s - attempts.start_s), np.float32),
        "ended": pack_column(attempts.ended, np.uint8),
        "restart_s": settings.restart_s,
    }


def _decisions(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """The cheapest places of each, and the one that was taken."""
    return [
        {
            "job": decision.job,
            "at_s": decision.at_s,
            "sure": {name: round(value, 4) for name, value in decision.sure.items()},
            "places": [
                {
                    "servers": place.servers,
                    "slowdown": round(place.slowdown, 4),
                    "others_s": round(place.others_s, 1),
                    "taken": place.taken,
                }
                for i, place in enumerate(decision.places)
                if i < MOST_PLACES or place.taken
            ],
        }
        for decision in decisions
    ]


def _about(comparison: Comparison) -> str:
    config = comparison.config
    known = [f"{name} {config[name]}" for name in ("cluster", "workload", "load") if config.get(name) is not None]
    return f"{', '.join(known)}; jaxsched {comparison.versions['jaxsched']}"


def _table(names: list[str], lines: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{escape(line[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in line[1:])
        + "</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


SCRIPT = Path(__file__).with_name("report_data.js")
KINDS = ("float64", "float32", "int32", "uint16", "uint8")
_LEVEL = 9  # zlib's most thorough; 3 s for 15 MB


def pack_column(values: Num[np.ndarray, "n"], kind: type) -> dict[str, str | int]:
    """A column as plain values, as results keep it: bytes as text, little-endian; of nothing but zeros their number."""
    if not values.any():
        return {"kind": np.dtype(kind).name, "zeros": len(values)}
    return {"kind": np.dtype(kind).name, "base64": base64.b64encode(values.astype(kind).tobytes()).decode("ascii")}


def _pack_numbers(values: Int[np.ndarray, "n"]) -> dict[str, str | int]:
    """A column of whole numbers in the fewest bytes that hold them all."""
    small = (kind for kind in (np.uint8, np.uint16) if (values.astype(kind) == values).all())
    return pack_column(values, next(small, np.int32))


def embed(data: Mapping[str, Any]) -> str:
    """`data` with its `pack_column` columns, as `report_data.js` reads it. UserError for a column that is none.

    Base64 of a deflated stream (RFC 1951). Its first 8 bytes are the sizes of all and of the JSON that follows; then
    come the columns. In the JSON, `at` of a column is where it begins; columns that are alike stand there once.
    """
    columns, places = bytearray(), dict[tuple[str, str], int]()

    def moved(value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("base64") is not None and value.get("kind") in KINDS:
            kind, text = value["kind"], value["base64"]
            found = _column(kind, text)
            if (kind, text) not in places:
                places[kind, text] = len(columns)
                columns.extend(found.T.tobytes())
            return {"kind": kind, "at": places[kind, text], "count": len(found)}
        if isinstance(value, Mapping):
            return {key: moved(inner) for key, inner in value.items()}
        return [moved(inner) for inner in value] if isinstance(value, list) else value

    head = json.dumps(moved(data), separators=(",", ":"), allow_nan=False).encode()
    sizes = np.array([8 + len(head) + len(columns), len(head)], "<u4").tobytes()
    deflate = zlib.compressobj(_LEVEL, wbits=-15)
    return base64.b64encode(deflate.compress(sizes + head + columns) + deflate.flush()).decode("ascii")


def _column(kind: str, text: Any) -> Num[np.ndarray, "n bytes"]:
    """The bytes of a column, a line per number."""
    wide = np.dtype(kind).itemsize
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), np.uint8).reshape(-1, wide)
    except (binascii.Error, TypeError, ValueError):
        raise UserError(f"report: a column of numbers cannot be read, should be the base64 of {kind}") from None
