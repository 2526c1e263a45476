"""All checks of the doctor, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mfsd.observe.doctor.checks import (
    bypass,
    clock,
    coordinator,
    daemon,
    devices,
    environment,
    lanes,
    libraries,
    limits,
    mtu,
    nic,
    others,
    override,
    peer,
    pfc,
    preload,
    process,
    program,
    store,
    verbs,
)
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host


class Check(Protocol):
    """A module of this package. Its docstring says what it examines, its constants of type Kind what it can find."""

    __name__: str
    __doc__: str | None
    TITLE: str

    def run(self, host: Host) -> Iterator[Finding]: ...


CHECKS: tuple[Check, ...] = (
    preload,
    libraries,
    program,
    process,
    daemon,
    coordinator,
    devices,
    verbs,
    override,
    environment,
    lanes,
    bypass,
    store,
    nic,
    pfc,
    mtu,
    peer,
    clock,
    limits,
    others,
)


def name_of(check: Check) -> str:
    return check.__name__.rpartition(".")[2]


def kinds_of(check: Check) -> list[Kind]:
    """The kinds that the check can find, in the order of its file."""
    return [value for value in vars(check).values() if isinstance(value, Kind)]
