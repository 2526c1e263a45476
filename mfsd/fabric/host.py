"""Shows, applies, verifies and rolls back the fabric policy on a host's interface.

Settings are independent: if one cannot be set, it is reported with the reason and the others are still set. The values
from before the first `apply` are kept in a file, and `rollback` writes exactly these back.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from mfsd.fabric.dcb import DcbLink, Exchange, kernel_exchange
from mfsd.fabric.host_settings import (
    Dcbx,
    DscpMap,
    EtsSetting,
    PfcSetting,
    Setting,
    SocketQueues,
    Trust,
    ecn_settings,
    rdma_settings,
)
from mfsd.fabric.plan import Plan

Outcome = Literal["ok", "differs", "would change", "changed", "cannot set", "not supported"]


class Result(Struct, frozen=True):
    """The result for one setting."""

    setting: str
    outcome: Outcome
    have: Any
    want: Any
    reason: str = ""
    remedy: str = ""

    @property
    def good(self) -> bool:
        return self.outcome in ("ok", "changed", "would change", "not supported")


class Host:
    """One interface of this host and a plan that has it as its only port.

    `qdisc`: "on", "off", or "auto" (on for devices without DCB). `sysfs`, `configfs`, `exchange` and `state_dir` give
    access to the kernel and the disk.
    """

    def __init__(
        self,
        plan: Plan,
        netns: str | None = None,
        qdisc: Literal["auto", "on", "off"] = "auto",
        sysfs: Path = Path("/sys"),
        configfs: Path = Path("/sys/kernel/config"),
        exchange: Exchange | None = None,
        state_dir: Path = Path("/var/lib/mfs/host"),
    ) -> None:
        self.plan = plan
        self.port = plan.ports[0]
        self.netns = netns
        self._sysfs, self._configfs = sysfs, configfs
        self.link = DcbLink(self.port.name, exchange or kernel_exchange(netns))
        self._qdisc = qdisc
        self._state = state_dir / f"{netns + '+' if netns else ''}{self.port.name}.json"

    def settings(self) -> list[Setting]:
        """Returns every setting that applies to this interface, in the order in which they are written."""
        found: list[Setting] = [
            Dcbx(self.link),
            DscpMap(self.link, self.plan),
            Trust(self.link, self._sysfs),
            EtsSetting(self.link, self.plan),
            PfcSetting(self.link, self.plan),
        ]
        if self._qdisc == "on" or (self._qdisc == "auto" and not self.has_dcb()):
            found.append(SocketQueues(self.plan, self.port, self.netns))
        return found + rdma_settings(self.port.name, self.plan, self._sysfs, self._configfs)

    def has_dcb(self) -> bool:
        """Whether the driver supports DCB. OSError if the interface does not exist."""
        try:
            self.link.read()
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise OSError(errno.ENODEV, f"{self.port.name}: no such interface") from error
            return False
        return True

    def show(self) -> list[Result]:
        """Returns every setting's value beside the one that the policy wants. Changes nothing."""
        self.has_dcb()
        return [self._compare(s) for s in self.settings()]

    def apply(self, dry_run: bool = False) -> list[Result]:
        """Writes the settings that differ, and reads each back. A second call changes nothing."""
        self.has_dcb()
        settings = self.settings()
        if not dry_run:
            self._save(settings)
        return [self._write(s, s.want, dry_run) for s in settings]

    def rollback(self, dry_run: bool = False) -> list[Result]:
        """Writes back the values from before the first `apply`, last setting first. Trust comes after the table of
        DSCPs, because it follows that on some devices. FileNotFoundError if no values are saved."""
        saved = msgspec.json.decode(self._read_state())
        last = {Trust: 1, Dcbx: 2}
        settings = self.settings_saved(saved)[::-1]
        settings.sort(key=lambda s: last.get(type(s), 0))
        results = [self._write(s, saved[s.name], dry_run) for s in settings]
        if not dry_run and all(r.good for r in results):
            self._state.unlink()
        return results

    def settings_saved(self, saved: dict[str, Any]) -> list[Setting]:
        """Returns the settings that `saved` has values for. These include the shaper, although "auto" may not choose it
        now, and settings that another policy has set."""
        others = [SocketQueues(self.plan, self.port, self.netns), *ecn_settings(self.port.name, range(8), self._sysfs)]
        by_name = {s.name: s for s in [*self.settings(), *others]}
        return [s for s in by_name.values() if s.name in saved]

    def _read_state(self) -> bytes:
        try:
            return self._state.read_bytes()
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self._state}: nothing to roll back: mfsctl host apply has not changed {self.port.name}"
            ) from error

    def _save(self, settings: list[Setting]) -> None:
        """Saves the oldest known value of every setting. The file is replaced atomically."""
        saved = msgspec.json.decode(self._state.read_bytes()) if self._state.exists() else {}
        for s in settings:
            with contextlib.suppress(OSError):
                saved.setdefault(s.name, s.read())
        self._state.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._state.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(saved))
        temporary.replace(self._state)

    def _compare(self, setting: Setting) -> Result:
        try:
            have = setting.read()
        except OSError as error:
            return self._explain(setting, None, setting.want, error, "not supported")
        return Result(setting.name, "ok" if have == setting.want else "differs", have, setting.want)

    def _write(self, setting: Setting, want: Any, dry_run: bool) -> Result:
        try:
            have = setting.read()
        except OSError as error:
            return self._explain(setting, None, want, error, "not supported")
        if have == want:
            return Result(setting.name, "ok", have, want)
        if dry_run:
            return Result(setting.name, "would change", have, want)
        try:
            setting.write(want)
            now = setting.read()
        except OSError as error:
            return self._explain(setting, have, want, error, "cannot set")
        if now != want:
            return Result(
                setting.name,
                "cannot set",
                now,
                want,
                "the driver accepted the value but kept another one",
                "see dmesg",
            )
        return Result(setting.name, "changed", have, want)

    def _explain(self, setting: Setting, have: Any, want: Any, error: OSError, outcome: Outcome) -> Result:
        driver = self.driver()
        reason = error.strerror or str(error)
        remedy = ""
        if error.errno == errno.EOPNOTSUPP:
            reason = f"{driver} has no such setting ({reason})"
            remedy = f"without it, {setting.loss}"
        elif error.errno in (errno.EPERM, errno.EACCES):
            outcome = "cannot set"
            reason = f"not permitted ({reason})"
            remedy = "run as root on the host, not in a container (CAP_NET_ADMIN)"
        elif error.errno == errno.EBUSY:
            outcome = "cannot set"
            remedy = "give DCBX to the host, on ConnectX: mlxconfig set LLDP_NB_DCBX_P1=0, then reset the NIC"
        elif error.errno == errno.EINVAL:
            remedy = f"{driver} refuses these values: compare with `mfsctl host show`"
        return Result(setting.name, outcome, have, want, reason, remedy)

    def driver(self) -> str:
        """Returns the name of the interface's driver, for reasons."""
        link = self._sysfs / "class/net" / self.port.name / "device/driver"
        return f"driver {link.readlink().name}" if link.is_symlink() else "this (virtual) device"


def verified(results: list[Result]) -> bool:
    """Whether every setting of the device is as the policy wants it, and at least one of them orders traffic."""
    ordering = any(r.outcome == "ok" and r.setting in ("ets", "qdisc") for r in results)
    return ordering and all(r.outcome in ("ok", "not supported") for r in results)
