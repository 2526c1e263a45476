"""The fabric policy file: which classes a network really has, and what every box does with them.

One TOML file describes hosts and switches alike. `load_profile` reads it, checks types and meaning, and
names the field's path in every error. Rates are per cent of the port's line rate, sizes are bytes, times
are milliseconds.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from mfsd.text import one_line, parse_toml

Dscp = Annotated[int, Meta(ge=0, le=63)]
Priority = Annotated[int, Meta(ge=0, le=7)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,23}$")]
SpeedGbps = Annotated[float, Meta(ge=0.001, le=10_000)]
GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}")
"""A part of names on switches."""

SHIPPED = "policy.toml"
MFS_CLASSES = 8
"""How many classes MFS itself orders by default; `fold` maps them onto the fabric's."""


class PolicyError(ValueError):
    """A policy file that cannot be used. One line, which starts with the path of the field at fault."""

    def __init__(self, problem: str) -> None:
        super().__init__(one_line(problem))


class FabricClass(Struct, frozen=True, forbid_unknown_fields=True):
    """One class of the fabric; its position in `classes` is its rank, 0 the highest."""

    name: Name
    dscp: Dscp
    """What MFS writes into packets of this class."""
    priority: Priority
    """802.1p priority, PFC priority and egress queue: one number on every box."""
    also_dscp: tuple[Dscp, ...] = ()
    """Further DSCPs that other software uses for traffic that belongs here."""
    lossless: bool = False
    scheduling: Literal["strict", "dwrr"] = "strict"
    floor_percent: Percent = 0
    """Bandwidth kept for this class although classes above it want all of it."""
    ceiling_percent: Annotated[int, Meta(ge=1, le=100)] = 100
    weight_percent: Percent = 0
    """Share among the dwrr classes of what the strict ones leave; only for dwrr."""
    ecn: bool = True


class Control(Struct, frozen=True, forbid_unknown_fields=True):
    """Congestion notification (CNP) and network control: little traffic that must never wait."""

    dscp: tuple[Dscp, ...]
    priority: Priority


class BestEffort(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that carries no DSCP named in the policy."""

    priority: Priority = 0
    floor_percent: Percent = 0
    weight_percent: Percent = 0


class EcnThresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """Where marking starts, where it reaches `mark_percent`, for ports of one speed."""

    speed_gbps: SpeedGbps
    min_bytes: Annotated[int, Meta(ge=1024)]
    max_bytes: Annotated[int, Meta(ge=1024)]
    mark_percent: Annotated[int, Meta(ge=1, le=100)]


class PfcWatchdog(Struct, frozen=True, forbid_unknown_fields=True):
    """Breaks a pause storm: a queue paused for `detection_ms` is drained until `restoration_ms` without
    pause."""

    poll_ms: Annotated[int, Meta(ge=100, le=1000)] = 100
    detection_ms: Annotated[int, Meta(ge=100, le=5000)] = 200
    restoration_ms: Annotated[int, Meta(ge=100, le=60000)] = 2000
    action: Literal["drop", "forward"] = "drop"


class Buffers(Struct, frozen=True, forbid_unknown_fields=True):
    lossless_percent: Annotated[int, Meta(ge=1, le=90)] = 50
    """Share of the packet memory for lossless classes where a switch partitions it."""


class PortGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Ports that are alike. Cable length and MTU decide the headroom a lossless class needs."""

    speed_gbps: SpeedGbps
    cable_m: Annotated[int, Meta(ge=1, le=40000)] = 5
    mtu_bytes: Annotated[int, Meta(ge=1280, le=9216)] = 9216


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """A complete policy for one fabric."""

    summary: str
    classes: Annotated[tuple[FabricClass, ...], Meta(min_length=1, max_length=8)]
    control: Control
    port_groups: Annotated[dict[str, PortGroup], Meta(min_length=1)]
    best_effort: BestEffort = BestEffort()
    ecn: tuple[EcnThresholds, ...] = ()
    pfc_watchdog: PfcWatchdog = PfcWatchdog()
    buffers: Buffers = Buffers()
    fold: tuple[int, ...] = ()
    """Fabric class of each MFS class, highest first; empty means an even split (see `fold_classes`)."""

    @property
    def digest(self) -> str:
        """Twelve hex digits that are equal exactly when two boxes were given the same policy."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:12]

    @property
    def lossless_priorities(self) -> tuple[int, ...]:
        return tuple(sorted(c.priority for c in self.classes if c.lossless))


def fold_classes(profile: Profile, mfs_classes: int = MFS_CLASSES) -> tuple[int, ...]:
    """Fabric class of each of MFS's `mfs_classes` classes, highest first.

    The profile's own `fold` wins when it has that length. Otherwise the order is kept, the scavenger (the
    last MFS class) gets the last fabric class to itself if there is more than one, and the rest is split
    evenly.
    """
    if mfs_classes < 1:
        raise ValueError(f"mfs_classes: {mfs_classes} is no number of classes; use 1 or more")
    if len(profile.fold) == mfs_classes:
        return profile.fold
    fabric = len(profile.classes)
    if fabric == 1 or mfs_classes == 1:
        return (0,) * mfs_classes
    upper = [c * (fabric - 1) // (mfs_classes - 1) for c in range(mfs_classes - 1)]
    return (*upper, fabric - 1)


def class_dscps(profile: Profile, mfs_classes: int = MFS_CLASSES) -> tuple[int, ...]:
    """DSCP of each MFS class, highest first."""
    return tuple(profile.classes[f].dscp for f in fold_classes(profile, mfs_classes))


def shipped_policy() -> str:
    """Text of the policy file that comes with MFS."""
    return (resources.files("mfsd.fabric") / "switch_configs" / SHIPPED).read_text()


DEFAULT_PROFILE = "rocev2-2-lossless"


def load_profiles(path: Path | None = None) -> dict[str, Profile]:
    """Every profile of a policy file, by name; the shipped file when `path` is None. Raises PolicyError."""
    label = str(path) if path else SHIPPED
    try:
        data = parse_toml(path.read_bytes().decode() if path else shipped_policy())
    except OSError as error:
        raise PolicyError(f"{label}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{label}: byte {error.start} is not UTF-8; TOML files are UTF-8") from error
    except ValueError as error:
        raise PolicyError(f"{label}: {error}") from error
    unknown = sorted(set(data) - {"profiles"})
    if unknown:
        raise PolicyError(f"{label}: {unknown[0]}: unknown field; everything lives under [profiles.NAME]")
    tables = data.get("profiles")
    if not isinstance(tables, dict) or not tables:
        raise PolicyError(f"{label}: profiles: no profile found; start one with [profiles.NAME]")
    for name in tables:
        if not name.isprintable():  # it is in a comment of what is rendered
            raise PolicyError(f"{label}: profiles: {name!r} is no name; use characters that can be printed")
    return {name: _profile(f"{label}: profiles.{name}", table) for name, table in tables.items()}


def load_profile(name: str, path: Path | None = None) -> Profile:
    """The profile `name` of a policy file. Raises PolicyError, listing the profiles there are."""
    profiles = load_profiles(path)
    if name not in profiles:
        raise PolicyError(f"{path or SHIPPED}: profiles.{name}: no such profile; there are {', '.join(profiles)}")
    return profiles[name]


def _profile(where: str, table: Any) -> Profile:
    try:
        profile = msgspec.convert(table, Profile, strict=True)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        field = path.rstrip("`").removeprefix("$")
        raise PolicyError(f"{where}{field}: {message}") from error
    validate(profile, where)
    return profile


def validate(profile: Profile, where: str = "profile") -> None:
    """Raises PolicyError for the first thing in `profile` that cannot work on any switch."""
    _check_group_names(profile, where)
    _check_names_and_dscps(profile, where)
    _check_order(profile, where)
    _check_shares(profile, where)
    _check_thresholds(profile, where)
    _check_fold(profile, where)


def _check_group_names(profile: Profile, where: str) -> None:
    for name in profile.port_groups:
        if not GROUP_NAME.fullmatch(name):
            raise PolicyError(
                f"{where}.port_groups: {name!r} is no name for switches; use up to 24 letters, digits, - and _"
            )


def _check_names_and_dscps(profile: Profile, where: str) -> None:
    names: set[str] = set()
    owner: dict[int, tuple[int, str]] = dict.fromkeys(profile.control.dscp, (profile.control.priority, "control"))
    if not profile.control.dscp:
        raise PolicyError(f"{where}.control.dscp: empty; name at least the DSCP of CNPs (48 on most NICs)")
    priorities: dict[int, str] = {}
    for i, c in enumerate(profile.classes):
        at = f"{where}.classes[{i}]"
        if c.name in names:
            raise PolicyError(f"{at}.name: {c.name!r} is used twice; every class needs its own name")
        for taken, priority in (("control", profile.control.priority), ("best-effort", profile.best_effort.priority)):
            if c.name == taken and c.priority != priority:
                raise PolicyError(f"{at}.name: {c.name!r} is what priority {priority} is called; use another name")
        names.add(c.name)
        if c.priority in priorities:
            raise PolicyError(
                f"{at}.priority: {c.priority} is already {priorities[c.priority]}'s; give {c.name} its own queue"
            )
        priorities[c.priority] = c.name
        for d in (c.dscp, *c.also_dscp):
            if d in owner and owner[d][0] != c.priority:
                raise PolicyError(f"{at}.dscp: {d} is already {owner[d][1]}'s; a DSCP can mean one class only")
            owner[d] = (c.priority, c.name)
    for i, c in enumerate(profile.classes):
        if c.priority == profile.control.priority and c.lossless:
            raise PolicyError(
                f"{where}.classes[{i}].lossless: {c.name} shares priority {c.priority} with control; "
                "a paused queue would hold congestion notifications: move control to another priority"
            )
        if c.priority == profile.best_effort.priority and c.lossless:
            raise PolicyError(
                f"{where}.classes[{i}].lossless: {c.name} shares priority {c.priority} with best_effort; "
                "unmarked traffic would be paused too: move best_effort to another priority"
            )


def _check_order(profile: Profile, where: str) -> None:
    above: FabricClass | None = None
    for i, c in enumerate(profile.classes):
        at = f"{where}.classes[{i}]"
        if above is not None:
            if above.scheduling == "dwrr" and c.scheduling == "strict":
                raise PolicyError(
                    f"{at}.scheduling: strict below dwrr ({above.name}); switches serve every strict "
                    "queue first: "
                    "put dwrr classes last"
                )
            if c.scheduling == "strict" and c.priority > above.priority:
                raise PolicyError(
                    f"{at}.priority: {c.priority} is above {above.name}'s {above.priority}; strict "
                    "queues are served "
                    "from the highest number down, so priorities must fall with rank"
                )
        above = c
    top = profile.classes[0]
    if profile.control.priority < top.priority:
        raise PolicyError(
            f"{where}.control.priority: {profile.control.priority} is below {top.name}'s {top.priority}; "
            "congestion notifications behind bulk data come too late"
        )
    lowest_strict = min((c.priority for c in profile.classes if c.scheduling == "strict"), default=8)
    if profile.best_effort.priority > lowest_strict:
        raise PolicyError(
            f"{where}.best_effort.priority: {profile.best_effort.priority} would go before strict "
            "class traffic on "
            f"{lowest_strict}; use a lower number"
        )
    shares = next((c for c in profile.classes if c.priority == profile.best_effort.priority), None)
    dwrr = next((c for c in profile.classes if c.scheduling == "dwrr"), None)
    if shares and dwrr and shares.scheduling == "strict":
        raise PolicyError(
            f"{where}.best_effort.priority: {shares.priority} is strict {shares.name}'s, above dwrr {dwrr.name}; "
            f"unmarked traffic would starve it: use {dwrr.priority} or less"
        )
    for i, c in enumerate(profile.classes):
        if c.scheduling == "dwrr" and c.priority > lowest_strict:
            raise PolicyError(
                f"{where}.classes[{i}].priority: {c.priority} is above strict class {lowest_strict}; use less"
            )


def _check_shares(profile: Profile, where: str) -> None:
    dwrr = [c for c in profile.classes if c.scheduling == "dwrr"]
    own_queue = all(c.priority != profile.best_effort.priority for c in profile.classes)
    for i, c in enumerate(profile.classes):
        at = f"{where}.classes[{i}]"
        if c.scheduling == "strict" and c.weight_percent:
            raise PolicyError(f"{at}.weight_percent: only dwrr classes have a weight; use floor_percent")
        if c.scheduling == "dwrr" and not c.weight_percent:
            raise PolicyError(f"{at}.weight_percent: 0 for a dwrr class; give it at least 1")
        if i > 0 and c.scheduling == "strict" and not c.floor_percent:
            raise PolicyError(f"{at}.floor_percent: 0 lets the classes above starve {c.name}; give it at least 1")
        if c.floor_percent > c.ceiling_percent:
            raise PolicyError(f"{at}.floor_percent: {c.floor_percent} exceeds ceiling_percent {c.ceiling_percent}")
    floors = sum(c.floor_percent for c in profile.classes) + profile.best_effort.floor_percent
    if floors > 50:
        raise PolicyError(
            f"{where}.classes: floors add up to {floors} %; more than 50 % undoes the priorities: lower floor_percent"
        )
    weights = sum(c.weight_percent for c in dwrr) + (profile.best_effort.weight_percent if own_queue else 0)
    if dwrr and weights != 100:
        raise PolicyError(
            f"{where}.classes: weight_percent of dwrr classes and best_effort adds up to {weights}, not 100"
        )
    if own_queue and not dwrr and profile.best_effort.weight_percent:
        raise PolicyError(
            f"{where}.best_effort.weight_percent: there is no dwrr class to share with; use floor_percent"
        )
    if own_queue and not dwrr and not profile.best_effort.floor_percent:
        raise PolicyError(f"{where}.best_effort.floor_percent: 0 lets MFS starve all other traffic; give it at least 1")
    if own_queue and dwrr and not profile.best_effort.weight_percent:
        raise PolicyError(f"{where}.best_effort.weight_percent: 0 beside dwrr classes; give it at least 1")


def _check_thresholds(profile: Profile, where: str) -> None:
    for i, e in enumerate(profile.ecn):
        if e.min_bytes >= e.max_bytes:
            raise PolicyError(f"{where}.ecn[{i}].min_bytes: {e.min_bytes} is not below max_bytes {e.max_bytes}")
        if any(o.speed_gbps == e.speed_gbps for o in profile.ecn[:i]):
            raise PolicyError(f"{where}.ecn[{i}].speed_gbps: {e.speed_gbps:g} is listed twice; keep one row per speed")
    marking = any(c.ecn for c in profile.classes)
    speeds = {e.speed_gbps for e in profile.ecn}
    for name, group in profile.port_groups.items():
        if marking and group.speed_gbps not in speeds:
            raise PolicyError(
                f"{where}.port_groups.{name}.speed_gbps: no ecn thresholds for {group.speed_gbps:g} Gbit/s; "
                f"add a row to {where.rpartition(' ')[2]}.ecn"
            )
    w = profile.pfc_watchdog
    for field in ("detection_ms", "restoration_ms"):
        if getattr(w, field) < w.poll_ms:
            raise PolicyError(
                f"{where}.pfc_watchdog.{field}: {getattr(w, field)} is below poll_ms {w.poll_ms}; a "
                "switch cannot see it"
            )


def _check_fold(profile: Profile, where: str) -> None:
    if not profile.fold:
        return
    if list(profile.fold) != sorted(profile.fold):
        raise PolicyError(f"{where}.fold: {list(profile.fold)} changes the order of classes; it must never fall")
    last = len(profile.classes) - 1
    for i, f in enumerate(profile.fold):
        if not 0 <= f <= last:
            raise PolicyError(f"{where}.fold[{i}]: {f} is no class of this profile; use 0..{last}")
