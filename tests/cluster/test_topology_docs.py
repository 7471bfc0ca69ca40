"""The page on topologies and its pictures against the arrays that the simulator uses; the commands that make them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from jaxsched.cli.main import main
from jaxsched.cluster.measures import draw, figures, layers, link_ends, save
from jaxsched.cluster.presets import get_inventory
from jaxsched.cluster.topologies import TOPOLOGIES
from jaxsched.cluster.topology import leaf_spine
from jaxsched.errors import UserError

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "topologies.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE, flags=re.MULTILINE))
LARGEST_PICTURE = 60_000  # bytes
LINGJUN = "lingjun_hosts.csv"


@pytest.fixture
def inventory_of(request):
    """Looks up a name of the table; real inventories only where they are."""

    def look_up(name: str):
        return get_inventory(str(request.getfixturevalue("cluster_data") / name) if name == LINGJUN else name)

    return look_up


@pytest.mark.parametrize("name", [*(f"{kind}-64" for kind in TOPOLOGIES), LINGJUN])
def test_every_figure_of_the_table_is_the_functions(name, inventory_of):
    f = figures(inventory_of(name))
    whole = [f"{value:,}" for value in (f.servers, f.racks, f.switches, f.links)]
    assert ROWS[name].split(" | ") == [*whole, f"{f.bisection_gbits_s:,.1f}", f"{f.oversubscription:.2f}"]


@pytest.mark.parametrize("name", [*(f"{kind}-64" for kind in TOPOLOGIES), LINGJUN])
def test_every_network_has_a_picture_with_its_links(name, inventory_of):
    path = DOCS / "images" / "topologies" / f"{name.removesuffix('_hosts.csv')}.svg"
    assert f"(images/topologies/{path.name})" in PAGE
    assert path.stat().st_size < LARGEST_PICTURE
    topology = inventory_of(name).topology
    picture = path.read_text(encoding="utf-8")
    assert f"{len(topology.link_names)} directed links" in picture
    assert f"{len(topology.server_rack)} servers" in picture


def test_what_is_drawn_are_the_links():
    topology = get_inventory("vl2-20").topology
    lines = draw(topology, "it").axes[0].collections[0]
    assert isinstance(lines, LineCollection)
    place = layers(topology)
    expected = {frozenset(map(tuple, place[ends])) for ends in link_ends(topology)}
    assert {frozenset(map(tuple, segment)) for segment in lines.get_segments()} == expected
    assert len(lines.get_segments()) == len(topology.link_names) // 2


def test_layers_are_hops_from_the_racks():
    topology = get_inventory("fat-tree-16").topology  # 8 racks, 4 pods, core
    np.testing.assert_array_equal(layers(topology)[:, 1], [0] * 8 + [1] * 4 + [2])


def test_the_commands_show_and_draw(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    report, picture = tmp_path / "figures.json", tmp_path / "torus.svg"
    main(["cluster", "show", "torus2d-16", "rail-3", "--json", str(report)])
    said = capsys.readouterr().out
    assert re.search(r"torus2d-16 +16 +16 +0 +64 +50\.0 +4\.00", said) and re.search(r"rail-3 .* inf +0\.00", said)
    written = json.loads(report.read_text(), parse_constant=pytest.fail)  # no Infinity, which JSON does not have
    assert written["torus2d-16"]["links"] == 64 and written["rail-3"]["bisection_gbits_s"] is None
    main(["cluster", "draw", "torus2d-16", "--out", str(picture)])
    assert "64 directed links" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show"], "name at least one cluster"),
        (["show", "bcube-60"], "cluster 'bcube-60': topology: a bcube has .* 49 and 64"),
        (["draw", "ring-9", "--out", "x.svg"], "unknown cluster 'ring-9'; .*give one of .*torus3d-N"),
        (["draw", "bcube-4", "--out", "no/such/x.svg"], "folder no/such does not exist"),
    ],
)
def test_mistakes_are_one_line(arguments, says, capsys, monkeypatch):
    monkeypatch.setattr("jaxsched.cli.main.enable_cache", lambda: None)
    with pytest.raises(SystemExit) as end:
        main(["cluster", *arguments])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert re.search(says, error) and error.count("\n") == 1


def test_pictures_have_a_known_format(tmp_path):
    with pytest.raises(UserError, match=r"\.svg, \.png or \.pdf"):
        save(leaf_spine(8), "it", tmp_path / "x.gif")
