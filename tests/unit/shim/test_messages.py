"""One clear line for each reason, on stderr, and the program runs on."""

from __future__ import annotations

import pytest

from tests.unit.shim.conftest import Native


def lines(native: Native, program: str, test: str, **environment: str) -> list[str]:
    return native.run(program, test, **environment).stderr.splitlines()


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("no_daemon", ("mfs: not attached", "shim_daemon.sock", "start mfsd or set MFS_SOCKET", "pass through")),
        ("other_version", ("mfs: not attached", "another ABI version", "one version")),
        (
            "older_than_destinations",
            ("mfs: the daemon speaks ABI 1.", "older than this library's", "newer features are not used"),
        ),
        ("no_memory", ("mfs: not attached", "no memory", "pass through")),
        ("daemon_detaches", ("mfs: the daemon is gone", "pass through until it is back")),
        ("device_refuses", ("mfs: the device refused a held work request (error 22)", "error state")),
    ],
)
def test_one_line_for_each_reason(native: Native, test: str, words: tuple[str, ...]) -> None:
    output = lines(native, "shim_fault" if test.startswith("device") else "shim_daemon", test)
    if test == "daemon_detaches" and output[1:] == ["mfs: attached to the daemon"]:
        output.pop()  # it may be back before the program ends, and that is a reason of its own
    assert len(output) == 1
    assert all(word in output[0] for word in words), output


@pytest.mark.parametrize("test", ["no_daemon", "other_version", "daemon_killed"])
def test_quiet(native: Native, test: str) -> None:
    assert lines(native, "shim_daemon", test, MFS_LOG="quiet") == []


def test_a_wrong_mode_is_named_and_taken_as_off(native: Native) -> None:
    output = lines(native, "shim_daemon", "no_daemon", MFS_MODE="enforced")
    assert output == ["mfs: MFS_MODE=enforced is not one of off, mark, observe, enforce: taken as off"]


def test_off_does_nothing(native: Native) -> None:
    assert lines(native, "shim_daemon", "no_daemon", MFS_MODE="off") == []
