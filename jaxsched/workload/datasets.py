"""Public data sets: where they come from, under which licence, and where their files lie on this machine.

The project carries no copy. `find` looks, in this order, in `$JAXSCHED_DATA`, `../shared/data` and `data` (seen from
the working directory, then from the project's root) and the cache, each of which has the folders `traces`, `clusters`,
`interference` and `placement`; `fetch` downloads into the cache with the optional `pooch` and checks the sha256.

Larger sets that are not registered, and are read as they are (`traces.FORMATS`; all CC-BY-4.0): full Philly
(msr-fiddle/philly-traces), Helios (S-Lab-System-Group/HeliosData), Acme (InternLM/AcmeTrace), Alibaba PAI 2020
(alibaba/clusterdata).
"""

import dataclasses
import importlib
import os
from pathlib import Path

from jaxsched.errors import UserError
from jaxsched.machine import home

_MURI = "Rivendile/Muri/4e69a78ce75f629a5a00abd48150a1860b341ce6/simulator/trace-data/"
_OPENB = "hkust-adsl/kubernetes-scheduler-simulator/8f3d6417353c5083c6d56617f255fadd8dc306bc/data/csv/"
_ELASTICFLOW = "pkusys/ElasticFlow/04a0109a6acdd7d89f4cb31b6a6a7a128bee6bb0/pollux/pollux_simulator/traces/"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """One file. `sha256` is the upstream file's; a local file that is a part or an extract of it has another one."""

    name: str
    file: str  # path inside a data folder
    upstream: str  # owner/repository/commit/path on GitHub
    sha256: str
    licence: str
    format: str
    note: str = ""
    same_format: bool = True  # the upstream file can be read as it is

    @property
    def url(self) -> str:
        """The pinned address of the upstream file."""
        return f"https://raw.githubusercontent.com/{self.upstream}"


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "philly",
            "traces/philly.csv",
            _ELASTICFLOW + "philly.csv",
            "ebffb3dd1589bdf4e7bcd74496201c5ded1d557d498ee14f560463f37ec353da",
            "CC-BY-4.0",
            "philly",
            "Microsoft Philly, filtered. The local file is the first 80% by time, sorted; upstream is all, unsorted",
        ),
        Dataset(
            "muri1",
            "traces/muri_trace1.csv",
            _MURI + "trace1.csv",
            "534d02a4ebe53aee1f60d3fb33e3b2207550bb28813e677c962051058ebafbc5",
            "Apache-2.0",
            "muri",
            "Philly's jobs with one of eight models each, times in milliseconds",
        ),
        Dataset(
            "muri2",
            "traces/muri_trace2.csv",
            _MURI + "trace2.csv",
            "5c29e1c49ed7929bff67c8008e6f2abcafc64e70bb55cdc91801490ce2df7003",
            "Apache-2.0",
            "muri",
        ),
        Dataset(
            "muri3",
            "traces/muri_trace3.csv",
            _MURI + "trace3.csv",
            "fc8d59783486122d9f522b430c1d5a59fbee119b41feb67a3f67e0751340ce93",
            "Apache-2.0",
            "muri",
        ),
        Dataset(
            "openb",
            "traces/openb_pods.csv",
            _OPENB + "openb_pod_list_default.csv",
            "1ee7ed79c27a3b0861cda8ddba86a004c6aba904caafa329a76ae93ca63834a8",
            "Apache-2.0",
            "openb",
            "Alibaba pods; 75 want more than one GPU: no test of gang scheduling on its own",
        ),
        Dataset(
            "openb-nodes",
            "clusters/openb_nodes.csv",
            _OPENB + "openb_node_list_gpu_node.csv",
            "2beca64b4d3dfa342036a34b56a495c6cef9225db836c81f541282cb1df320b5",
            "Apache-2.0",
            "openb-nodes",
            "1,213 nodes with 6,212 GPUs of several types",
        ),
        Dataset(
            "lingjun-hosts",
            "clusters/lingjun_hosts.csv",
            "alibaba/alibaba-lingjun-dataset-2023/2ad3fd1e2fd16222cc018827fb84f3a3ff220bb9/data/topo.csv",
            "95b67f62c4ecb25fd1be816a96c5b10808c4604a83effd4a79d13461a05a3af6",
            "Apache-2.0",
            "lingjun-hosts",
            "847 hosts of a three-layer Clos",
        ),
        Dataset(
            "gavel-gpu-sharing",
            "interference/gavel_gpu_sharing.csv",
            "stanford-futuredata/gavel/c4fa40097339e9608ab71fd64c8bdea96a5e4a4c/scheduler/simulation_throughputs.json",
            "17111f7295f03265fd9e5118d7eba31e3dd9d6e50a2e215c13ad3d3f91f74381",
            "MIT",
            "gavel-pairs",
            "two one-GPU jobs on one GPU; the local file is an extract with a fifth of the pairs held out",
            same_format=False,
        ),
        Dataset(
            "deepshare-network",
            "interference/deepshare_network.csv",
            "gajagajago/deepshare/a70443948253922f3842e5ab6af626fe92c56b92/scheduler/jobs/shared_thp_ratio.csv",
            "326e7d3083c389e6f50f60769b5cd501944fed32b0c4cae94d0ad9a6bfef65d2",
            "Apache-2.0",
            "deepshare-pairs",
            "two multi-node jobs on one network; the local file is an extract with a fifth of the cells held out",
            same_format=False,
        ),
    )
}


def get_dataset(name: str) -> Dataset:
    """The registered data set. UserError names the unknown one and the known ones."""
    if name not in DATASETS:
        raise UserError(f"data set: unknown name {name!r}; known are {', '.join(DATASETS)}")
    return DATASETS[name]


def cache_dir() -> Path:
    """Where downloads go: `$XDG_CACHE_HOME/jaxsched` or `~/.cache/jaxsched`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "jaxsched"


def data_dirs() -> list[Path]:
    """The folders in which `find` looks, in this order; they need not exist."""
    roots = [Path(), Path(__file__).parents[2]]
    given = os.environ.get("JAXSCHED_DATA")
    folders = [root / folder for root in roots for folder in ("../shared/data", "data")]
    return [Path(given), *folders, cache_dir()] if given else [*folders, cache_dir()]


def find(name: str) -> Path:
    """The local file of a data set. UserError if it is nowhere, with the places and the way to get it."""
    dataset = get_dataset(name)
    for folder in data_dirs():
        if (folder / dataset.file).is_file():
            return folder / dataset.file
    places = ", ".join(dict.fromkeys(str(folder / dataset.file) for folder in data_dirs()))
    raise UserError(
        f"data set {name!r} is at none of {places}; set JAXSCHED_DATA to the folder that holds {dataset.file}"
        + (f", or download it with jaxsched.workload.datasets.fetch({name!r})" if dataset.same_format else "")
    )


def fetch(name: str) -> Path:
    """The file of a data set in the cache, downloaded if it is not there and checked against its sha256.

    UserError if `pooch` is not installed, the upstream file is in another format, or the download fails.
    """
    dataset = get_dataset(name)
    if not dataset.same_format:
        raise UserError(
            f"data set {name!r}: the upstream file ({dataset.url}) is in another format, there is no reader for it"
        )
    try:
        pooch = importlib.import_module("pooch")
    except ImportError:
        raise UserError(
            f"data set {name!r}: downloading needs pooch (pip install 'jaxsched[data]'); or put {dataset.url} "
            f"at {cache_dir() / dataset.file} by hand"
        ) from None
    target = cache_dir() / dataset.file
    try:
        pooch.retrieve(dataset.url, known_hash=f"sha256:{dataset.sha256}", fname=target.name, path=target.parent)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; ValueError: another hash
        raise UserError(f"data set {name!r}: {dataset.url} could not be downloaded: {error}") from None
    return target
