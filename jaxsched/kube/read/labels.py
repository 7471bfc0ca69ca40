"""Labels and annotations that the scheduler reads and writes; docs/kubernetes.md says what each means."""

PREFIX = "jaxsched.io/"

# Annotations of pods that users set; ROLE "ps" marks a parameter server.
MODEL, DURATION, GANG_SIZE = f"{PREFIX}model", f"{PREFIX}duration-seconds", f"{PREFIX}gang-size"
ROLE = f"{PREFIX}role"

# The same of others: how many pods start together, the name of Volcano's PodGroup, which pods are parameter servers.
KUEUE_COUNT, MIN_AVAILABLE = "kueue.x-k8s.io/pod-group-total-count", "pod-group.scheduling.sigs.k8s.io/min-available"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
PS_LABELS = ("training.kubeflow.org/replica-type", "tf-replica-type")

# Annotations of pods that a Binding writes.
GROUP, DECISION, POLICY = f"{PREFIX}gpu-group", f"{PREFIX}decision-id", f"{PREFIX}policy"

# Labels of nodes.
GPU_GROUPS = f"{PREFIX}gpu-groups"  # GPUs per socket, e.g. 4-4
PRODUCT_LABEL = "nvidia.com/gpu.product"

# Node labels, inner tier to outer. Sources: Kueue's topology-aware scheduling, NVIDIA topograph (old and new names).
TOPOLOGY_PRESETS: dict[str, tuple[str, ...]] = {
    "kueue": ("cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"),
    "topograph": ("network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"),
    "topograph-tier": ("fabric.topograph.run/tier-1", "fabric.topograph.run/tier-2"),
    "zone": ("topology.kubernetes.io/zone", "topology.kubernetes.io/region"),
}
