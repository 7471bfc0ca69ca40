"""GPU products: what their names mean, how fast they are, and files of further ones."""

import numpy as np
import pytest

from jaxsched.cluster.gpu_types import ANCHORS, GPU_SPEEDS, find_gpu_type, read_gpu_speeds, speed_of_peak
from jaxsched.cluster.inventory import read_csv
from jaxsched.cluster.presets import get_cluster
from jaxsched.errors import UserError

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,96000,1,8,{}\nn1,96000,1,8,H100\nn2,96000,1,8,H100\n"


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-A100-SXM4-80GB", "A100"),
        ("A100-SXM4-80GB", "A100"),
        ("a100_80gb", "A100"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("NVIDIA-GeForce-RTX-2080-Ti", "RTX-2080-Ti"),
        ("rtx2080ti", "RTX-2080-Ti"),
        ("NVIDIA-GeForce-RTX-2080", "RTX-2080"),
        ("NVIDIA-RTX-A6000", "RTX-A6000"),
        ("Quadro-RTX-6000", "RTX-6000"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("a6000", "RTX-A6000"),
        ("NVIDIA-H100-PCIe", "H100-PCIe"),
        ("NVIDIA-GH200-480GB", "GH200"),
        ("NVIDIA-A10G", "A10G"),
        ("NVIDIA-A10", "A10"),
        ("Tesla-K80", "K80"),
        ("nvidia-tesla-t4", "T4"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("AMD_Instinct_MI325_OAM", "MI325X"),
        ("V100M16", "V100M16"),
        ("NVIDIA-A100-SXM4-40GB-MIG-7g.40gb", "A100"),
    ],
)
def test_a_product_is_of_a_type(product: str, name: str) -> None:
    found = find_gpu_type(product)
    assert found is not None and found == (name, GPU_SPEEDS[name])


@pytest.mark.parametrize("product", ["", "NVIDIA-X900", "A1000", "GPU", "NVIDIA-A10X", "-", "H1000", "2080"])
def test_a_product_that_is_not_known_is_none_of_them(product: str) -> None:
    assert find_gpu_type(product) is None


@pytest.mark.parametrize(
    ("product", "resource", "name", "share"),
    [
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "", "A100 1/7", 1 / 7),
        ("A100-SXM4-40GB-MIG-1g.5gb-SHARED", "", "A100 1/7", 1 / 7),
        ("NVIDIA-A30-MIG-2g.12gb", "", "A30 2/4", 2 / 4),
        ("NVIDIA-A100-SXM4-40GB", "nvidia.com/mig-3g.20gb", "A100 3/7", 3 / 7),
        ("NVIDIA-A100-SXM4-40GB", "nvidia.com/mig-1c.3g.20gb", "A100 1/7", 1 / 7),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb+me", "", "H100 1/7", 1 / 7),
        ("a100_1g.5gb", "", "A100 1/7", 1 / 7),
        ("nvidia_a100-sxm4-40gb_3g.20gb", "", "A100 3/7", 3 / 7),
    ],
)
def test_a_slice_has_its_share(product: str, resource: str, name: str, share: float) -> None:
    """Before: a whole A100."""
    found = find_gpu_type(product, resource=resource)
    assert found is not None and found.name == name
    assert found.speed == pytest.approx(share * GPU_SPEEDS[name.split()[0]])


def test_speeds_rise_with_peaks_and_go_through_what_was_measured() -> None:
    peaks = np.geomspace(1.0, 1e4, 200)
    assert (np.diff([speed_of_peak(one) for one in peaks]) > 0).all()
    for tflops, speed in ANCHORS:
        assert speed_of_peak(tflops) == pytest.approx(speed)


def test_a_list_of_nodes_names_products(write) -> None:
    """Before: refused."""
    inventory = read_csv(write("nodes.csv", NODES.format("NVIDIA-A100-SXM4-40GB-MIG-2g.10gb")))
    assert [server.gpu_type for server in inventory.servers] == ["A100 2/7", "H100", "H100"]
    speed = np.asarray(inventory.build(1).group_speed)[0, :, 0]
    np.testing.assert_allclose(speed, [GPU_SPEEDS["A100"] * 2 / 7 / GPU_SPEEDS["H100"], 1, 1], rtol=1e-6)


def test_speeds_of_ones_own(write) -> None:
    nodes = write("nodes.csv", NODES.format("RTX-9090"))
    with pytest.raises(UserError, match=r"model: unknown GPU type 'RTX-9090'.*--gpu-speeds FILE"):
        get_cluster(str(nodes), 1)
    speeds = write("speeds.yaml", "{RTX-9090: 1.9, H100: 3}")
    assert read_gpu_speeds(speeds) == {"RTX-9090": 1.9, "H100": 3.0}
    np.testing.assert_allclose(np.asarray(get_cluster(str(nodes), 1, speeds).group_speed)[0, :, 0], [1.9 / 3, 1, 1])
    found = find_gpu_type("NVIDIA-A100-SXM4-80GB", {"A100": 2.06, "A100-SXM4-80GB": 2.2})
    assert found == ("A100-SXM4-80GB", 2.2)


@pytest.mark.parametrize("text", ["", "[1]", "{}", "{A100: fast}", "{A100: 0}", "{A100: .nan}", "{1: 2}", "{'-': 1}"])
def test_a_file_of_speeds_that_is_none(write, text: str) -> None:
    path = write("speeds.yaml", text)
    with pytest.raises(UserError) as error:
        read_gpu_speeds(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{a100: 2}", "{rtx-2080-ti: 1.5, L40S: 2}"])
def test_a_known_type_in_other_letters_is_refused(write, text: str) -> None:
    """Before: it was another type, and A100 kept its speed."""
    for kind, content in ((read_gpu_speeds, text), (get_cluster, f"servers: [{{gpu_type: A100}}]\ngpu_speeds: {text}")):
        with pytest.raises(UserError, match=r"should be spelled (A100|RTX-2080-Ti)$"):
            kind(write("some.yaml", content))
