"""An operator's settings for the request tier: numbers of the rules, tiers, weights of tenants, and where decisions and
state are written. They come from a TOML file, or as the same tables in the engine's own configuration."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import msgspec
import msgspec.inspect

from mfsd.policy.serve import ServeConfig, Service
from mfsd.policy.serve.config import DAY_S
from mfsd.policy.serve.meta import MetaConfig, Strategy
from mfsd.serve.records import FILES, SIZE_MAX_BYTES

IMPORTANCE_MAX: Final = 1000
NO_TIER: Final = "default"
"""Name of the tier of requests without one."""
_DAY_MS: Final = DAY_S * 1e3
_SENTENCE: Final = re.compile(
    r"(?P<problem>Object contains unknown field `(?P<unknown>.*?)`|Invalid enum value '(?P<word>.*?)')"
    r"(?P<where> - at `(?P<path>\$[^`]*)`)?"
)
"""Error messages of msgspec that do not say what is allowed."""


class SettingsError(ValueError):
    """``str()`` is one line: the file, the field's path, the value and what is allowed."""


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request of the tier is promised where it does not say itself."""

    ttft_ms: float | None = None
    """Time to first token, from arrival."""
    tbt_ms: float | None = None
    """Time between tokens."""
    ttlt_ms: float | None = None
    """Time to last token, from arrival."""
    importance: int = 0
    """Greater is more important."""

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tbt_ms", "ttlt_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value < _DAY_MS:  # written so that NaN fails
                raise ValueError(f"{name} is {value}: use milliseconds above 0 and below a day")
        if abs(self.importance) > IMPORTANCE_MAX:
            raise ValueError(f"importance is {self.importance}: use {-IMPORTANCE_MAX} to {IMPORTANCE_MAX}")


def check_tiers(tiers: Collection[str]) -> None:
    """Raises ValueError if a tier has a name that is not allowed."""
    if NO_TIER in tiers:
        raise ValueError(f"tiers.{NO_TIER}: requests without a tier are called so: use [{NO_TIER}], or another name")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where decisions are written, one file per engine (mfsd.serve.records)."""

    folder: str = ""
    """Empty: decisions are not written."""
    size_max_bytes: int = SIZE_MAX_BYTES
    """Size at which a file is rotated."""
    files: int = FILES

    def __post_init__(self) -> None:
        if not 4096 <= self.size_max_bytes <= 1 << 40:
            raise ValueError(f"size_max_bytes is {self.size_max_bytes}: use 4096 to {1 << 40}")
        if not 1 <= self.files <= 1000:
            raise ValueError(f"files is {self.files}: use 1 to 1000")


class Meta(MetaConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The meta controller in the engine's process: its numbers, and the model that the strategy `llm` asks."""

    enabled: bool = False
    endpoint: str = ""
    """URL of an OpenAI-compatible /v1/chat/completions."""
    model: str = ""
    timeout_s: float = 10.0
    """Longest time from the request to the last byte of the answer; a later answer is ignored."""
    api_key_file: str = ""
    """A file with the endpoint's key (`Authorization: Bearer`), read for each request; empty: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.1 <= self.timeout_s <= 60:  # written so that NaN fails
            raise ValueError(f"timeout_s is {self.timeout_s}: use 0.1 to 60")
        if self.strategy is Strategy.LLM and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint is {self.endpoint!r}: use the http:// or https:// URL that strategy llm asks")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    """False: the engine's own scheduler decides alone."""
    serve: ServeConfig = ServeConfig()
    programs: Service = Service.PLAS
    """How the service that a program has had is counted, for policies that order by it (mlfq, las)."""
    default: Tier = Tier()
    """Tier of requests that name none, or an unknown one."""
    tiers: dict[str, Tier] = {}
    tenants: dict[str, float] = {}
    """Weight of each tenant; 1 for tenants not listed."""
    record: Record = Record()
    meta: Meta = Meta()

    def __post_init__(self) -> None:
        check_tiers(self.tiers)
        for tenant, weight in self.tenants.items():
            if not (math.isfinite(weight) and 0 < weight <= 1e6):
                raise ValueError(f"tenants.{tenant} is {weight}: use a weight above 0 and up to 1e6")


def tables_in(path: Path) -> Any:
    """Returns the tables of a TOML file, for `read_tables`. SettingsError."""
    try:
        return msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; name a file that this process may read") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise SettingsError(f"{path}: {explained(error, Settings)}") from None


def read_tables(tables: Any, where: str) -> Settings:
    """Reads settings from tables. `where` names the tables in errors. SettingsError."""
    try:
        return msgspec.convert(tables, Settings)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SettingsError(f"{where}: {explained(error, Settings)}") from None


def explained(error: Exception, struct: type[msgspec.Struct]) -> str:
    """Returns an error as one line. If msgspec found an unknown word or key of `struct`, it says what is allowed."""
    line = " ".join(str(error).split())
    parts = _SENTENCE.fullmatch(line)
    if not isinstance(error, msgspec.ValidationError) or parts is None:
        return line
    at = _type_at(struct, parts["path"] or "$")
    hint = ""
    if parts["unknown"] is not None and isinstance(at, msgspec.inspect.StructType):
        names = [field.encode_name for field in at.fields]
        close = difflib.get_close_matches(parts["unknown"], names, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
    elif parts["word"] is not None and isinstance(at, msgspec.inspect.EnumType):
        hint = f": use {', '.join(str(word.value) for word in at.cls)}"
    return f"{parts['problem']}{hint}{parts['where'] or ''}"


def _type_at(struct: type[msgspec.Struct], path: str) -> msgspec.inspect.Type | None:
    """Returns the type at a path of msgspec, such as `$.tiers[...].ttft_ms`; None if there is none."""
    at: msgspec.inspect.Type | None = msgspec.inspect.type_info(struct)
    for name, entry in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path):
        at = _not_none(at)
        if name and isinstance(at, msgspec.inspect.StructType):
            at = next((field.type for field in at.fields if field.encode_name == name), None)
        elif entry and isinstance(at, msgspec.inspect.ListType):
            at = at.item_type
        elif entry and isinstance(at, msgspec.inspect.DictType):
            at = at.value_type
        else:
            return None
    return _not_none(at)


def _not_none(at: msgspec.inspect.Type | None) -> msgspec.inspect.Type | None:
    """Returns the type of a value that may be left out."""
    if isinstance(at, msgspec.inspect.UnionType):
        return next((kind for kind in at.types if not isinstance(kind, msgspec.inspect.NoneType)), None)
    return at
