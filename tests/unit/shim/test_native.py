"""The shim over a device that records what it is given, with a daemon that does as scripted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mfsd.policy.store_lease import VARIABLE, parse_lease_ms
from tests.unit.shim.conftest import Native, names_of

HOLD, THREADS = names_of("shim_hold"), names_of("shim_threads")
FAULTS = [f"{program} {test}" for program in ("shim_fault", "shim_daemon", "shim_cq_ex") for test in names_of(program)]
METADATA, PROFILER = names_of("shim_metadata"), names_of("shim_profiler")
PROFILER_VERSIONS = (4, 5, 6, 7)
FORKS_AND_STARTS_THREADS = {"shim_daemon opened_after_fork"}  # what the thread sanitizer does not support
FEW = {"PER_QP": "5000"}
TIMEOUTS = {
    "library_timeout": {"MC_TRANSFER_TIMEOUT": "1"},
    "slice_timeout": {"MC_TRANSFER_TIMEOUT": "900", "MC_SLICE_TIMEOUT": "1"},
    "served_until_the_timeout": {"MC_TRANSFER_TIMEOUT": "2"},
}


def mode_of(test: str) -> dict[str, str]:
    return {"MFS_MODE": "observe" if test == "observe" else "enforce", **TIMEOUTS.get(test, {})}


@pytest.mark.parametrize("test", HOLD)
def test_holding(native: Native, test: str) -> None:
    native.run("shim_hold", test, **mode_of(test))


@pytest.mark.parametrize("test", FAULTS)
def test_faults(native: Native, test: str) -> None:
    native.run(*test.split())


@pytest.mark.parametrize("test", THREADS)
def test_threads(native: Native, test: str) -> None:
    native.run("shim_threads", test)


@pytest.mark.parametrize("test", METADATA)
def test_metadata(native: Native, test: str) -> None:
    native.run("shim_metadata", test)


@pytest.mark.parametrize("version", PROFILER_VERSIONS)
@pytest.mark.parametrize("test", PROFILER)
def test_nccl_profiler(native: Native, test: str, version: int) -> None:
    native.run("shim_profiler", test, str(version), str(native.shim))


def test_roles_and_classes(native: Native) -> None:
    native.run("shim_roles", "roles", str(native.folder))


@pytest.mark.parametrize(
    ("text", "lease_ms"), [("1000", 1000), ("", 5000), ("1s", 5000), ("0", 5000), ("86400001", 5000)]
)
def test_a_store_is_held_for_a_quarter_of_its_lease(native: Native, text: str, lease_ms: int) -> None:
    environment = {"MFS_STORE_LEASE_MS": text, "STORE_LEASE_NS": str(lease_ms * 10**6)}
    done = native.run("shim_roles", "store_lease", str(native.folder), **environment)
    try:
        assert parse_lease_ms(text) == lease_ms
    except ValueError as error:
        assert f"mfs: {error}\n" in done.stderr, "the adapter says the same"
    else:
        assert VARIABLE not in done.stderr


@pytest.mark.parametrize("lookup", ["dlvsym", "dlsym"])
def test_programs_that_open_the_library_by_name(native: Native, lookup: str) -> None:
    native.run("shim_reach", lookup, str(native.folder / "libibverbs.so.1"))


@pytest.mark.parametrize("lookup", ["dlvsym", "dlsym"])
def test_several_copies_of_the_library_in_one_program(native: Native, lookup: str, tmp_path: Path) -> None:
    """As wheels bring them: each copy's devices are patched once, and post through their own copy."""
    library = native.folder / "libibverbs.so.1"
    copies = [shutil.copy(library, tmp_path / f"libibverbs-{n}.so.1") for n in range(2)]
    native.run("shim_reach", lookup, str(library), *map(str, copies))


@pytest.mark.parametrize("seed", range(8))
def test_a_caller_sees_no_difference(native: Native, seed: int) -> None:
    """Return codes, bad_wr, completions and what reaches the device, over thousands of random steps."""
    alone = native.run("shim_trace", str(seed), LD_PRELOAD="").stdout.splitlines()
    held = native.run("shim_trace", str(seed), MFS_SHIM_EXPECTED="1").stdout.splitlines()
    assert len(alone) > 2000
    assert held == alone


@pytest.mark.parametrize(
    "test",
    [f"shim_hold {t}" for t in HOLD] + FAULTS + [f"shim_metadata {t}" for t in METADATA],
)
def test_address_sanitizer(with_asan: Native, test: str) -> None:
    program, name = test.split()
    with_asan.run(program, name, **mode_of(name))


@pytest.mark.parametrize("test", PROFILER)
def test_address_sanitizer_profiler(with_asan: Native, test: str) -> None:
    for version in PROFILER_VERSIONS:
        with_asan.run("shim_profiler", test, str(version), str(with_asan.shim))


@pytest.mark.parametrize("test", THREADS)
def test_address_sanitizer_threads(with_asan: Native, test: str) -> None:
    with_asan.run("shim_threads", test, **FEW)


def test_address_sanitizer_trace(with_asan: Native) -> None:
    with_asan.run("shim_trace", "77")


@pytest.mark.parametrize("test", THREADS)
def test_thread_sanitizer_threads(with_tsan: Native, test: str) -> None:
    with_tsan.run("shim_threads", test, **FEW)


def test_thread_sanitizer_ranges(with_tsan: Native) -> None:
    with_tsan.run("shim_metadata", "ranges_change_under_readers")


@pytest.mark.parametrize("test", [t for t in FAULTS if t not in FORKS_AND_STARTS_THREADS])
def test_thread_sanitizer_faults(with_tsan: Native, test: str) -> None:
    with_tsan.run(*test.split())
