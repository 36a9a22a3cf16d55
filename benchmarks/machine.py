"""What the figures were measured on."""

import datetime
import importlib.metadata
import os
import platform
import shutil
import subprocess

PACKAGES = (
    "jaxdyn", "jax", "jaxlib", "numpy", "pin", "libpinocchio", "cmeel-eigen", "cmeel-boost", "frax", "mujoco",
    "mujoco-mjx", "brax", "jaxsim", "example-robot-data",
)  # fmt: skip


def cores() -> list[int]:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _vector_extensions() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line.split(":", 1)[1].split() for line in file if line.startswith("flags")), [])
    except OSError:
        return []
    return [name for name in ("avx2", "fma", "avx512f") if name in flags]


def _compiler() -> str | None:
    path = shutil.which("g++")
    if path is None:
        return None
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()[0]


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def facts() -> dict:
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "vector extensions": _vector_extensions(),
        "cores": len(cores()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "compiler": _compiler(),
        "load average at start": None if load is None else round(load[0], 2),
        "versions": versions(),
    }
