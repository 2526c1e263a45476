"""The DSCP of each class on this node's packets, from the fabric policy's profile."""

from __future__ import annotations

from pathlib import Path

from mfsd.fabric.plan import make_plan
from mfsd.fabric.policy import DEFAULT_PROFILE, PolicyError, Profile, load_profile
from mfsd.fabric.wire_table import wire_table
from mfsd.node.config import Config, WireConfig
from mfsd.node.config_file import ConfigError


def class_dscps(config: Config, file: str) -> tuple[int, ...]:
    """DSCPs of class 0, 1, ...; empty: nothing is marked. `file` is the name in errors. Raises ConfigError."""
    if not config.wire.profile:
        return ()
    try:
        profile = _load(config.wire)
    except PolicyError as error:
        raise ConfigError(file, "wire.profile", config.wire.profile, str(error)) from error
    return wire_table(profile, config.policy.classes).dscp


def class_priorities(config: Config) -> tuple[int, ...]:
    """802.1p priorities of class 0, 1, ...; empty: nothing is marked, or the profile cannot be read."""
    if not config.wire.profile:
        return ()
    try:
        profile = _load(config.wire)
    except PolicyError:
        return ()
    priority = make_plan(config.wire.profile, profile, {}).dscp_to_priority
    return tuple(priority[dscp] for dscp in wire_table(profile, config.policy.classes).dscp)


def fabric_profile(wire: WireConfig) -> tuple[str, Profile]:
    """Name and profile that hosts and switches should have, by default the shipped one. Raises PolicyError."""
    return wire.profile or DEFAULT_PROFILE, _load(wire)


def _load(wire: WireConfig) -> Profile:
    return load_profile(wire.profile or DEFAULT_PROFILE, Path(wire.policy_file) if wire.policy_file else None)
