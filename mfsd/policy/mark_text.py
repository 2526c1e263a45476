"""Reads and writes marks as one environment variable, `MFS_MARK`.

`mfs-run --mode mark` writes it. Adapters read it here; the shim reads it in nccl_shim/src/mark.c. It is a list:

    dscp=46,34,-,8;stages=collective:0,reuse:1,p2d:2,background:3;sizes=reuse:1048576+16777216;rule=role:kv,dscp:34

`dscp` has one entry for each class on the wire; `-` stands for none. `stages` lists the classes of each stage, the
highest first. `sizes` lists the largest size for each of them but the last. A `rule` is for the shim: it says which
queue pairs get a DSCP when they are connected. In the values of a rule, %XX stands for a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mfsd.policy.marks import CLASSES_MAX, ROLES, MarkRule, Marks, checked
from mfsd.policy.types import Stage

VARIABLE: Final = "MFS_MARK"
SET_BY_US: Final = "MFS_SET_CLASSES"
"""Names, separated by spaces, the class variables that mfs-run has set."""
PLAIN: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:"
"""Bytes that a rule contains unescaped: those of file names and addresses."""
BYTES_MAX: Final = 2**63 - 1


def mark_text(marks: Marks) -> str:
    """Writes marks as the variable's value."""
    parts = ["dscp=" + ",".join("-" if one is None else str(one) for one in marks.dscp)]
    parts.append("stages=" + _by_stage_text(marks.stages))
    if marks.sizes:
        parts.append("sizes=" + _by_stage_text(marks.sizes))
    return ";".join([*parts, *map(_rule_text, marks.rules)])


def parse_marks(text: str) -> Marks:
    """Reads the variable's value. Raises ValueError that names the invalid part."""
    dscp: tuple[int | None, ...] = ()
    stages: dict[Stage, tuple[int, ...]] = {}
    sizes: dict[Stage, tuple[int, ...]] = {}
    rules: list[MarkRule] = []
    for part in filter(None, text.split(";")):
        key, _, value = part.partition("=")
        if key == "dscp":
            dscp = tuple(None if one == "-" else _number(one, 63) for one in value.split(","))
        elif key == "stages":
            stages = _by_stage(value, lambda one: _number(one, CLASSES_MAX - 1))
        elif key == "sizes":
            sizes = _by_stage(value, lambda one: _number(one, BYTES_MAX))
        elif key == "rule":
            rules.append(_rule(value))
        else:
            raise ValueError(f"{part!r}: no such part; there are dscp, stages, sizes and rule")
    return checked(Marks(dscp, stages, sizes, tuple(rules)))


def _by_stage_text(values: Mapping[Stage, Iterable[int]]) -> str:
    return ",".join(f"{stage.name.lower()}:{'+'.join(map(str, numbers))}" for stage, numbers in values.items())


def _by_stage(value: str, read: Callable[[str], int]) -> dict[Stage, tuple[int, ...]]:
    names = {stage.name.lower(): stage for stage in Stage}
    found: dict[Stage, tuple[int, ...]] = {}
    for entry in value.split(","):
        name, _, numbers = entry.partition(":")
        if name not in names:
            raise ValueError(f"{entry!r}: {name!r} is none of {', '.join(names)}")
        found[names[name]] = tuple(map(read, numbers.split("+")))
    return found


def _rule_text(rule: MarkRule) -> str:
    words = {name: value for name, value in zip(rule._fields[:4], rule[:4], strict=True) if value}
    fields = [f"{name}:{_quoted(str(value))}" for name, value in words.items()]
    if rule.role != "any":
        fields.append(f"role:{rule.role}")
    if rule.dscp is not None:
        fields.append(f"dscp:{rule.dscp}")
    return "rule=" + ",".join(fields)


def _rule(value: str) -> MarkRule:
    words: dict[str, str] = {}
    dscp: int | None = None
    for field in filter(None, value.split(",")):
        name, _, text = field.partition(":")
        if name not in MarkRule._fields:
            raise ValueError(f"rule: {name!r} is none of {', '.join(MarkRule._fields)}")
        if name == "dscp":
            dscp = _number(text, 63)
        else:
            words[name] = _unquoted(text)
    if words.get("role", "any") not in ROLES:
        raise ValueError(f"rule: role {words['role']!r} is none of {', '.join(ROLES)}")
    return MarkRule(**words, dscp=dscp)


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise ValueError(f"{text!r} is not a whole number from 0 to {most}")
    return int(text)


def _quoted(text: str) -> str:
    return "".join(chr(byte) if byte in PLAIN else f"%{byte:02X}" for byte in text.encode(errors="surrogateescape"))


def _unquoted(text: str) -> str:
    first, *others = text.encode(errors="surrogateescape").split(b"%")
    try:
        whole = first + b"".join(bytes.fromhex(one[:2].decode("ascii")) + one[2:] for one in others)
    except ValueError:
        whole = b""
    if not whole or any(len(one) < 2 for one in others):
        raise ValueError(f"rule: {text!r} is empty, or has a % without two hexadecimal digits")
    return whole.decode(errors="surrogateescape")
