"""What the last bits of a result depend on."""

import platform
from importlib import metadata

from jaxsched.machine import cpu_kind

PACKAGES = ("jax", "jaxlib", "flax", "numpy", "numba")


def versions() -> dict[str, str]:
    """Of jaxsched, of the packages that its results depend on and of Python, and the kinds of device and of CPU."""
    import jax

    import jaxsched

    found = {"jaxsched": jaxsched.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | {"device": jax.devices()[0].device_kind, "cpu": cpu_kind()}
