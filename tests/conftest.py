"""Hostile settings under which every test runs, and a few fixtures of general use.

Doubles are on, arrays of different rank or dtype do not combine silently, warnings are errors (pyproject.toml),
every annotated shape of the library is checked on every call, and JAX sees two devices, so that sharding is
tested on every laptop.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def _cache_folder() -> str:
    """Compiled programs are kept here between runs; in the temporary folder if the clone is read-only."""
    folder = ROOT / ".pytest_cache" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return str(folder)
    except OSError:
        pass
    return tempfile.mkdtemp(prefix="jaxdyn-tests-")


# Before JAX and NumPy are imported. The environment is inherited by the commands that tests start: those share
# the compilation cache, but not the settings below, so that they behave as they do for a user.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _cache_folder())
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import equinox as eqx
import hypothesis
import jax
import jaxtyping
import pytest

assert not any(name.partition(".")[0] == "jaxdyn" for name in sys.modules), "imported before the shape checks"
jaxtyping.install_import_hook("jaxdyn", "beartype.beartype")

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# No deadline: the first example of a property compiles. The same examples on every machine: a red run can be repeated.
hypothesis.settings.register_profile("jaxdyn", deadline=None, derandomize=True, max_examples=25, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "jaxdyn"))


def pytest_addoption(parser):
    parser.addoption(
        "--slow",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="run tests marked slow, in each process until they have taken this long together (default 0: none)",
    )
    parser.addoption(
        "--slow-part",
        type=_part,
        default=(0, 1),
        metavar="I/N",
        help="of the slow tests only the I-th of N parts, I counted modulo N (default 0/1: all). Tests with the same "
        "parameters, such as all of one robot, are in one part.",
    )


def _part(text):
    i, n = map(int, text.split("/"))
    return i % n, n


def _is_in_part(item):
    i, n = item.config.getoption("--slow-part")
    parameters = item.name.partition("[")[2] or item.nodeid
    return zlib.crc32(parameters.encode()) % n == i


_slow_seconds = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    global _slow_seconds
    start = time.monotonic()
    try:
        return (yield)
    finally:
        if item.get_closest_marker("slow"):
            _slow_seconds += time.monotonic() - start


def pytest_runtest_setup(item):
    if not item.get_closest_marker("slow"):
        return
    minutes = item.config.getoption("--slow")
    if not minutes:
        pytest.skip("slow; --slow=MINUTES gives such tests time")
    if not _is_in_part(item):
        pytest.skip("slow; not in this part")
    if _slow_seconds >= 60 * minutes:
        pytest.skip(f"slow; {minutes:g} min are used up")


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled_programs():
    """A process that keeps thousands of compiled programs runs out of memory maps."""
    yield
    eqx.clear_caches()
    jax.clear_caches()


@pytest.fixture
def key():
    """A random key, the same in every run."""
    return jax.random.key(20240229)


@pytest.fixture(scope="session")
def run_python():
    """`run_python(*arguments, timeout=300, check=True)` runs a fresh interpreter as a user would have it.

    Gives the `subprocess.CompletedProcess` with `stdout` and `stderr` as text; with `check`, a failing
    exit status fails the test and shows what was printed.
    """

    def run(*arguments, timeout=300, check=True, **options):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=options.pop("cwd", ROOT),
            **options,
        )
        if check and done.returncode != 0:
            pytest.fail(f"exit status {done.returncode}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}")
        return done

    return run


@pytest.fixture(scope="session")
def browser():
    """The path of a Chromium, from `JAXDYN_BROWSER` or the usual names; skips the test where there is none."""
    names = [os.environ.get("JAXDYN_BROWSER", ""), "chromium", "chromium-browser", "google-chrome"]
    for name in filter(None, names):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium on this machine; set JAXDYN_BROWSER to its path")
