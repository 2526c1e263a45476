"""Reads a configuration file, strictly. An error is one line with the file, the key, its value and what is allowed."""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct

from mfsd.node.address import control_beside
from mfsd.node.config import Config, NicConfig, PolicyKeys, SocketConfig, WireConfig
from mfsd.node.schema import Key, allowed, between, keys, struct_of
from mfsd.node.values import DurationNs, RateBytesPerS
from mfsd.proto.wire import TlsError, TlsFiles, read_pem
from mfsd.text import one_line, parse_toml

NAME_BYTES_MAX = 31
"""Names take 32 bytes in shared memory, including their end."""
ERRORS_MAX = 20
"""Errors shown at once."""
SOCKET_PATH_BYTES_MAX = 99
"""A unix socket path holds 107 bytes; the control socket's folder adds a suffix."""


REPLACED: dict[tuple[type[Struct], str], str] = {
    (WireConfig, "dscp"): (
        "is no key any more: the fabric policy has the DSCPs, which hosts and switches share. Name its profile in "
        'wire.profile, for example "rocev2-lossy-ecn" (mfsctl switch policy lists them). For other DSCPs copy the '
        "shipped policy file, change the classes, and name the copy in wire.policy_file"
    ),
    **{
        (PolicyKeys, key.attribute): f'is a duration now: write for example {key.name} = "{key.default}"'
        for key in keys(PolicyKeys)
        if isinstance(key.default, DurationNs)
    },
}
"""What to do about keys of earlier versions."""


class ConfigError(Exception):
    """A configuration that cannot be used. ``str()`` is one line."""

    def __init__(self, file: str, key: str, value: object, problem: str) -> None:
        self.file, self.key, self.value, self.problem = file, key, value, problem
        shown = "" if value is UNSET else f" = {toml_value(value)}"
        super().__init__(one_line(f"{file}: {key}{shown}: {problem}" if key else f"{file}: {problem}"))


def load(path: Path) -> Config:
    """Reads and checks the file. Raises ConfigError if anything is wrong with it, or if it cannot be read."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(str(path), "", UNSET, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "", UNSET, f"byte {error.start} is not UTF-8; TOML files are UTF-8") from error
    return parse(text, str(path))


def parse(text: str, file: str) -> Config:
    """Reads and checks TOML text; ``file`` is its name in errors."""
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise ConfigError(file, "", UNSET, str(error)) from error
    config, errors = _checked(raw, file, ERRORS_MAX)
    if errors:
        raise errors[0]
    assert config is not None
    return config


def problems(path: Path) -> list[ConfigError]:
    """Returns everything that is wrong with the file; :func:`load` raises the first of it."""
    try:
        text = path.read_bytes().decode()
        raw = parse_toml(text)
    except (OSError, ValueError):
        try:
            load(path)
        except ConfigError as error:
            return [error]
        raise
    return _checked(raw, str(path), ERRORS_MAX)[1]


def _checked(raw: dict[str, Any], file: str, most: int) -> tuple[Config | None, list[ConfigError]]:
    """Returns the configuration, or None if some of it cannot be read, and everything that is wrong with it.

    Leaves out what cannot be read and reads the rest again.
    """
    errors: list[ConfigError] = []
    rest = copy.deepcopy(raw)
    gone: list[list[str | int]] = []
    config: Config | None = None

    def note(path: list[str | int], why: str) -> None:
        errors.append(ConfigError(file, _dotted(_as_written(path, gone)), _lookup(rest, path), why))

    while len(errors) < most:
        try:
            config = msgspec.convert(rest, Config, dec_hook=_parse_value)
            break
        except msgspec.ValidationError as problem:
            path, why = _explain(rest, str(problem))
            note(path, why)
            removed = _leave_out(rest, path)
            if removed is None:
                break
            gone.append(_as_written(removed, gone))
    if config is not None:
        for at, why in _contradictions(config):
            if _as_written(at, gone) not in gone:  # else its error is in the list already
                note(at, why)
    return (None if errors else config), errors[:most]


def _leave_out(raw: Any, path: list[str | int]) -> list[str | int] | None:
    """Removes what is at the path, or else the entry around it. Returns the path of what was removed, or None."""
    for length in range(len(path), 0, -1):
        place, step = _lookup(raw, path[: length - 1]), path[length - 1]
        if isinstance(place, dict) and step in place:
            del place[step]
            return path[:length]
        if isinstance(place, list) and isinstance(step, int) and step < len(place):
            del place[step]
            return path[:length]
    return None


def _as_written(path: list[str | int], gone: list[list[str | int]]) -> list[str | int]:
    """The path with the numbers that list entries have in the file, since earlier entries may have been left out."""
    found: list[str | int] = []
    for step in path:
        if isinstance(step, int):
            for number in sorted(int(g[-1]) for g in gone if g[:-1] == found and isinstance(g[-1], int)):
                step += number <= step
        found.append(step)
    return found


def socket_path_problem(path: str) -> str | None:
    """Why the path cannot be a socket's; None if it can."""
    if not path.startswith("/") or "\0" in path:
        return 'must be an absolute path, for example "/run/mfs/mfsd.sock"'
    length = len(path.encode(errors="surrogateescape"))
    if length > SOCKET_PATH_BYTES_MAX:
        return f"is {length} bytes long; a socket path has at most {SOCKET_PATH_BYTES_MAX}"
    return None


def control_path(socket: SocketConfig) -> Path:
    """The socket that mfsctl uses."""
    return Path(socket.control) if socket.control else control_beside(Path(socket.path))


def control_problem(socket: SocketConfig) -> str | None:
    """Why the control socket cannot be there; None if it can."""
    if not socket.control:
        return None
    if (problem := socket_path_problem(socket.control)) is not None:
        return problem
    attach_folder, folder = Path(socket.path).parent, Path(socket.control).parent
    if attach_folder == folder or attach_folder in folder.parents:
        return (
            f"lies in the folder of socket.path ({attach_folder}), which containers mount: root in any of them could "
            f'switch this node; choose another folder, for example "{control_beside(Path(socket.path))}"'
        )
    return None


def toml_value(value: object) -> str:
    """A value as written in TOML, cut if long."""
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{_quoted(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(map(toml_value, value)) + "]"
    elif isinstance(value, (str, bool)):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _parse_value(kind: type, value: object) -> Any:
    """msgspec's hook for the classes of :mod:`mfsd.node.values`. msgspec adds the path to a ValueError."""
    return kind.parse(value)  # type: ignore[attr-defined]


# ---- errors of one value -------------------------------------------------------------------------

_PATH = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_OUR_OWN = re.compile(r"Expected |Invalid |Object |Integer |Number |Length ")


def _explain(raw: dict[str, Any], error: str) -> tuple[list[str | int], str]:
    """Returns where msgspec found an error, and its sentence turned into ours, which says what is allowed there."""
    match = _PATH.fullmatch(error)
    assert match is not None, error
    path = _resolve(raw, match["path"] or "$")
    struct, key = _find(path)
    unknown, missing = _UNKNOWN.fullmatch(match["problem"]), _MISSING.fullmatch(match["problem"])
    if unknown and (struct, unknown[1]) in REPLACED:
        path = [*path, unknown[1]]
        problem = REPLACED[struct, unknown[1]]
    elif unknown:
        names = [k.name for k in keys(struct)]
        close = difflib.get_close_matches(unknown[1], names, n=1)
        hint = f'did you mean "{close[0]}"? ' if close else ""
        path = [*path, unknown[1]]
        problem = f"unknown key; {hint}Allowed here: {', '.join(names)}"
    elif missing:
        (required,) = [k for k in keys(struct) if k.name == missing[1]]
        path = [*path, required.name]
        problem = f"missing; must be {allowed(required.type, required.limits)}"
    elif inner := re.fullmatch(r"(\w+) is ([^:]*): (.*)", match["problem"]):  # mfsd.policy's own checks
        (wrong,) = [k for k in keys(struct) if k.attribute == inner[1]]
        path = [*path, wrong.name]
        problem = f"must be {allowed(wrong.type, wrong.limits)}" if wrong.limits else inner[3]
    elif _OUR_OWN.match(match["problem"]) is None:
        problem = match["problem"]
    else:
        assert key is not None, error
        hint = _element(key.type) if path and isinstance(path[-1], int) else key.type
        problem = f"must be {allowed(hint, key.limits)}"
    return path, problem


def _resolve(raw: dict[str, Any], path: str) -> list[str | int]:
    """The steps of msgspec's path. msgspec does not name the entry of a table, so each entry is tried."""
    steps: list[str | int] = []
    for name, index, entry in re.findall(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])", path):
        if entry:
            steps.append(next(n for n, value in _lookup(raw, steps).items() if not _is_nic(value)))
        else:
            steps.append(int(index) if index else name)
    return steps


def _is_nic(value: object) -> bool:
    try:
        msgspec.convert(value, NicConfig, dec_hook=_parse_value)
    except msgspec.ValidationError:
        return False
    return True


def _find(path: list[str | int]) -> tuple[type[Struct], Key | None]:
    """The innermost struct on the path, and its field if the path ends in one."""
    struct: type[Struct] = Config
    key: Key | None = None
    for step in path:
        by_name = {k.name: k for k in keys(struct)}
        if key is not None and struct_of(key.type) is struct and isinstance(step, int):
            continue
        if step in by_name:
            key = by_name[str(step)]
            struct = struct_of(key.type) or struct
    return struct, key


def _element(hint: Any) -> Any:
    """The type of a list's elements, below annotations and None."""
    while get_origin(hint) is not list:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    return get_args(hint)[0]


def _lookup(raw: Any, path: list[str | int]) -> Any:
    """What is at the path; UNSET if nothing is."""
    try:
        for step in path:
            raw = raw[step]
    except (KeyError, IndexError, TypeError):
        return UNSET
    return raw


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _dotted(path: list[str | int]) -> str:
    """``rule[0].peer``, ``nic."mlx5_0".rate``: entries of a table are quoted."""
    text = ""
    for at, step in enumerate(path):
        if isinstance(step, int):
            text += f"[{step}]"
        elif at and path[at - 1] == "nic":
            text += "." + json.dumps(step, ensure_ascii=False)
        else:
            text += ("." if text else "") + _quoted(step)
    return text


# ---- settings that can be read, but are hardly what is meant --------------------------------------


def doubts(config: Config, file: str) -> Iterator[str]:
    """Yields lines about settings that work but are hardly what is meant."""
    for at, rule in enumerate(config.rule):
        for name in ("library", "process", "communicator"):
            value = getattr(rule, name)
            if re.search(r"[*?^$|()\[\]\\]", value):
                yield (
                    f"{file}: rule[{at}].{name} = {toml_value(value)}: is taken as it stands, as a part of the "
                    "name; patterns mean nothing here"
                )


def unusable_files(config: Config, file: str) -> Iterator[str]:
    """Yields lines about certificates and keys that are named but cannot be used on this host."""
    for table, prefix in (("cluster", ""), ("coordinator", ""), ("coordinator", "etcd_")):
        ca, certificate, key = (getattr(getattr(config, table), prefix + name) for name in ("ca", "certificate", "key"))
        if ca and certificate and key:
            try:
                read_pem(TlsFiles(ca=Path(ca), certificate=Path(certificate), key=Path(key)))
            except TlsError as error:
                yield f"{file}: {table}.{prefix}{error}"


# ---- values that are wrong together, or beyond a limit -------------------------------------------


def _contradictions(config: Config) -> Iterator[tuple[list[str | int], str]]:
    yield from _out_of_limits(config, [])
    if (problem := socket_path_problem(config.socket.path)) is not None:
        yield ["socket", "path"], problem
    if (problem := control_problem(config.socket)) is not None:
        yield ["socket", "control"], problem
    if config.arbiter.stale_after_ns < 2 * config.arbiter.heartbeat_ns:
        yield (
            ["arbiter", "stale_after"],
            f"must be at least twice arbiter.heartbeat ({config.arbiter.heartbeat_ns}), "
            "or programs take a living daemon for dead",
        )
    for name in config.nic:
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            yield ["nic", name], f"a device name has 1 to {NAME_BYTES_MAX} bytes (see ibv_devices)"
    yield from _port_contradictions(config)
    if config.wire.policy_file and not config.wire.policy_file.startswith("/"):
        yield ["wire", "policy_file"], 'must be an absolute path, for example "/etc/mfs/policy.toml"'
    if config.wire.policy_file and not config.wire.profile:
        yield ["wire", "profile"], "name the profile of wire.policy_file that is used"
    otlp = config.telemetry.otlp
    if otlp and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", otlp):
        yield ["telemetry", "otlp"], 'must be a URL, for example "http://collector:4318"'
    yield from _half_a_certificate(config)
    yield from _rule_contradictions(config)


def _port_contradictions(config: Config) -> Iterator[tuple[list[str | int], str]]:
    for name, nic in config.nic.items():
        here: list[str | int] = ["nic", name, "port"]
        if nic.port is None:
            if nic.rate_bytes_per_s is None:
                limits = f"must be {allowed(RateBytesPerS, between(RateBytesPerS, '1mbit', '10tbit'))}"
                yield ["nic", name, "rate"], f"missing; {limits}"
        elif not 0 < len(nic.port.encode()) <= NAME_BYTES_MAX:
            yield here, f"a device name has 1 to {NAME_BYTES_MAX} bytes (see ibv_devices)"
        elif nic.rate_bytes_per_s is not None or nic.address is not None:
            yield here, f"a function that shares a port has its rate and address: leave those of {name} out"
        elif nic.port == name or (nic.port in config.nic and config.nic[nic.port].port is not None):
            yield here, "must be the device that has the port itself, not one that shares it"


def _half_a_certificate(config: Config) -> Iterator[tuple[list[str | int], str]]:
    for table, prefix in (("cluster", ""), ("coordinator", ""), ("coordinator", "etcd_")):
        names = [f"{prefix}{name}" for name in ("ca", "certificate", "key")]
        empty = [name for name in names if not getattr(getattr(config, table), name)]
        if empty and len(empty) < 3:
            yield [table, empty[0]], f"mutual TLS needs all of {', '.join(names)}; set it, or none of them"


def _rule_contradictions(config: Config) -> Iterator[tuple[list[str | int], str]]:
    for at, rule in enumerate(config.rule):
        for name in ("library", "process"):
            length = len(getattr(rule, name).encode())
            if length > NAME_BYTES_MAX or "\0" in getattr(rule, name):
                yield (
                    ["rule", at, name],
                    f"is {length} bytes long; at most {NAME_BYTES_MAX}, none of them zero",
                )
        if rule.action == "hold" and rule.stage in ("control", "collective"):
            yield (
                ["rule", at, "stage"],
                f'"{rule.stage}" never waits; use action = "pass", or stage "reuse", "p2d" or "background"',
            )
        if rule.wire_class is not None and rule.dscp is not None:
            yield ["rule", at, "class"], "give class or dscp, not both"
        if rule.wire_class is not None and not config.wire.profile:
            yield ["rule", at, "class"], "no class has a DSCP; name a profile in wire.profile, or use dscp"
        elif rule.wire_class is not None and rule.wire_class >= config.policy.classes:
            last = config.policy.classes - 1
            yield ["rule", at, "class"], f"policy.classes is {config.policy.classes}: use 0 to {last}"


def _out_of_limits(struct: Struct, path: list[str | int]) -> Iterator[tuple[list[str | int], str]]:
    for key in keys(type(struct)):
        value = getattr(struct, key.attribute)
        here = [*path, key.name]
        if isinstance(value, Struct):
            yield from _out_of_limits(value, here)
        elif isinstance(value, dict):
            for name, entry in value.items():
                yield from _out_of_limits(entry, [*here, name])
        elif key.limits and value is not None and not key.limits.lowest <= value <= key.limits.highest:
            yield here, f"must be {allowed(key.type, key.limits)}"
