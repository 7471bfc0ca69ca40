"""Which of Volcano's PodGroups get which phase."""

import pytest

from jaxsched.kube.plan.outcome import volcano_phases
from jaxsched.kube.read.groups import OWNER_KINDS, read_owner, read_pod_group
from tests.kube.snapshots import nodes, snapshot
from tests.support.kube.objects import make_pod

(JOB,) = (kind for kind in OWNER_KINDS if kind.name == "Job.batch.volcano.sh")


@pytest.mark.parametrize(
    ("now", "pods", "running", "scheduler", "wanted"),
    [
        ("", 0, 0, "jaxsched", ["Inqueue"]),
        ("Pending", 0, 0, "jaxsched", ["Inqueue"]),
        ("Pending", 0, 0, "volcano", []),
        ("Inqueue", 2, 1, "jaxsched", []),
        ("Inqueue", 2, 2, "jaxsched", ["Running"]),
        ("Pending", 2, 2, "jaxsched", ["Running"]),  # bound while nobody looked
        ("Running", 2, 0, "jaxsched", []),  # its controller makes them anew
        ("Unknown", 0, 0, "jaxsched", []),
    ],
)
def test_phases(now: str, pods: int, running: int, scheduler: str, wanted: list[str]) -> None:
    job = {"metadata": {"name": "j", "namespace": "default", "uid": "j"}, "spec": {"schedulerName": scheduler}}
    for owned in (True, False):  # without a Job it is its pods that say whose it is
        owner = [{"kind": "Job", "name": "j", "uid": "j", "controller": True}] if owned else []
        meta = {"name": "g", "namespace": "default", "uid": "g", "ownerReferences": owner}
        raw = {"apiVersion": "scheduling.volcano.sh/v1beta1", "metadata": meta, "spec": {"minMember": 2}}
        own = [make_pod(f"p{i}", 1, uid=f"p{i}", annotations={"scheduling.k8s.io/group-name": "g"},
                        scheduler=scheduler, node="n0" if i < running else "") for i in range(pods)]  # fmt: skip
        groups, owners = (read_pod_group(raw | {"status": {"phase": now}}),), (read_owner(job, JOB),)
        shot = snapshot(nodes(1), own, groups=groups, owners=owners)
        found = [phase for _, phase in volcano_phases(shot, "jaxsched")]
        assert found == (wanted if owned or pods else [])
