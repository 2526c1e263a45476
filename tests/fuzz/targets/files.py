"""Files that people write: the daemon's configuration, the fabric's policy, configurations of switches, traces."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.sim.workload import TraceError, read_trace
from mfsd.fabric.policy import PolicyError, class_dscps, load_profiles, shipped_policy
from mfsd.fabric.systems import SYSTEMS
from mfsd.fabric.systems.eos import eos_structured
from mfsd.node import rules
from mfsd.node.config_file import ConfigError, load
from mfsd.node.reference import default_toml
from mfsd.node.wire import class_dscps as dscps_of_wire
from mfsd.policy.request_tiers import TIERS_MAX
from mfsd.serve.tier_reader import TierReader
from tests.fuzz.inputs import BETWEEN, messages

GOLDEN = Path(__file__).resolve().parents[2] / "unit/fabric/golden"

Check = Callable[[bytes], None]


def one_line(error: Exception, *parts: str) -> None:
    """An error for people: one line, without what disturbs a terminal, that names where it is."""
    text = str(error)
    assert text.isprintable(), f"not one printable line: {text!r}"
    assert len(text) < 1500, f"{len(text)} characters"
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"


# ---- what engines publish ------------------------------------------------------------------------

STATUSES = (
    b'{"format":1,"pid":7,"engine":"vllm-7-0","config":{"policy":"fit","step_tokens":8192},"gave_up":false,"waiting":2,'
    b'"tiers":{"chat":{"met":9,"late":1,"tokens":77,"waiting":2,"paused":1},"batch":{}},"requests":[{"request":"r"}]}',
    b'{"format":1,"pid":7,"config":{"policy":"edf"},"gave_up":true,"tiers":{"a":{"met":140737488355328,"lost":0}}}',
    b'{"format":2,"pid":1}',
)


@contextlib.contextmanager
def engine_status(folder: Path) -> Iterator[Check]:
    """The daemon's reading of it, beside that of an honest engine."""
    (folder / "honest.json").write_bytes(STATUSES[0])

    def check(data: bytes) -> None:
        named: list[str] = []
        (folder / "other.json").write_bytes(data)
        found = TierReader(lambda: [folder], lambda _, why: named.append(why)).read()
        assert found.engines + found.unreadable == 2 and len(named) == found.unreadable <= 1
        assert found.tiers["chat"].met >= 9 and len(found.tiers) <= TIERS_MAX
        assert all(name.isprintable() for name in found.tiers)
        for why in named:
            one_line(ValueError(why))

    yield check


# ---- the daemon's configuration ------------------------------------------------------------------

CONFIGURATIONS = (
    default_toml().encode(),
    b'mode = "observe"\n[socket]\npath = "/run/mfs/a.sock"\nmode = "0660"\nallowed_uids = [0, "root"]\n'
    b'group = "root"\n',
    b'[arbiter]\nheartbeat = "10ms"\nstale_after = "40ms"\nmax_hold = "10s"\nwindow = "200us"\nwindow_min = "128kib"\n',
    b'[[rule]]\nlibrary = "libnccl"\npeer = "10.1.0.0/16"\nrole = "kv"\naction = "hold"\nstage = "p2d"\nclass = 1\n'
    b'[wire]\nprofile = "rocev2-lossy-ecn"\n[policy]\nsoon = "500ms"\n',
    b'[[rule]]\ncommunicator = "tp"\naction = "pass"\ndscp = 10\nset_role = "bulk"\n[nic."mlx5_0"]\nrate = "100gbit"\n'
    b'address = "10.0.0.7"\n[nic.b]\nrate = "1.5tbit"\n',
    b'[cluster]\ncoordinators = ["c1:7400", "[::1]:7400"]\nnode = "n"\nunit = "u"\nttl = "5s"\n'
    b'ca = "/a.pem"\ncertificate = "/b.pem"\nkey = "/c.pem"\n',
    b'[coordinator]\nlisten = "[::]:7400"\nadvertise = "c1:7400"\netcd = ["e1:2379"]\nlease = "2s"\n'
    b'web = "127.0.0.1:7480"\n'
    b"[policy]\ndrop_budget = 0.05\nlevels = 6\nclasses = 8\n",
)


@contextlib.contextmanager
def configuration(folder: Path) -> Iterator[Check]:
    file = folder / "mfsd.toml"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        try:
            config = load(file)
            dscp = dscps_of_wire(config, str(file))
        except ConfigError as error:
            one_line(error, str(file))
        else:
            rules.native(config.rule, dscp)

    yield check


# ---- the fabric's policy -------------------------------------------------------------------------


def policies() -> tuple[bytes, ...]:
    whole = shipped_policy()
    starts = [
        at
        for at in range(len(whole))
        if whole.startswith("[profiles.", at) and whole[at:].split("]")[0].count(".") == 1
    ]
    return tuple(whole[a:b].encode() for a, b in zip(starts, [*starts[1:], len(whole)], strict=True)) or (
        whole.encode(),
    )


@contextlib.contextmanager
def policy(folder: Path) -> Iterator[Check]:
    file = folder / "policy.toml"

    def check(data: bytes) -> None:
        file.write_bytes(data)
        try:
            profiles = load_profiles(file)
        except PolicyError as error:
            one_line(error, str(file))
        else:
            for profile in profiles.values():
                assert len(class_dscps(profile)) == 8
                assert len(profile.digest) == 12

    yield check


# ---- configurations of switches ------------------------------------------------------------------


def switches() -> tuple[bytes, ...]:
    """Each with its system's name in front."""
    files = sorted(GOLDEN.glob("paper-k8.*"))
    return tuple(file.name.split(".")[1].encode() + BETWEEN + file.read_bytes() for file in files)


@contextlib.contextmanager
def switch(folder: Path) -> Iterator[Check]:
    """What `mfsctl switch check` and `mfsctl switch diff` read."""
    rendered: dict[str, str] = {}
    for one in switches():
        nos, text = messages(one)
        rendered[nos.decode()] = text.decode()

    def check(data: bytes) -> None:
        named, *rest = messages(data)
        nos = named.decode(errors="replace")
        if nos not in rendered:
            return
        text = BETWEEN.join(rest).decode(errors="replace")
        try:
            for change in SYSTEMS[nos].diff(rendered[nos], text):
                assert change.path
        except ValueError as error:
            one_line(error)
        if nos in ("onyx", "nxos", "cumulus", "sonic"):
            assert all(finding.message for finding in SYSTEMS[nos].check(text, folder))
        if nos == "eos":  # the rest is Arista's own package
            with contextlib.suppress(ValueError):
                eos_structured(text)

    yield check


# ---- traces --------------------------------------------------------------------------------------

TRACES = (
    b'{"timestamp": 0, "input_length": 1000, "output_length": 10, "hash_ids": [1, 2]}\n'
    b'{"timestamp": 27, "input_length": 600, "output_length": 1, "hash_ids": [1, 3]}\n',
    b'{"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 3, "type": "text", '
    b'"turn": 1, "hash_ids": [5, 6, 7]}\n',
    b'{"req_id": 1, "arrival_s": 1.5, "input_tokens": 5, "output_tokens": 2, "session": "a", "blocks": [1], '
    b'"block_tokens": [5]}\n',
    b'{"TIMESTAMP": 3.25, "ContextTokens": 9, "GeneratedTokens": 4}\n',
)


def parquet_traces() -> tuple[bytes, ...]:
    import pyarrow
    from pyarrow import parquet

    written = []
    for lines in TRACES:
        to = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist([json.loads(line) for line in lines.splitlines()]), to)
        written.append(to.getvalue())
    return tuple(written)


def _read(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    try:
        rows = read_trace(file)
    except TraceError as error:
        one_line(error, str(file))
    else:
        assert all(row.prefix_tokens(len(row.blocks)) <= row.input_tokens for row in rows)


@contextlib.contextmanager
def trace(folder: Path) -> Iterator[Check]:
    yield lambda data: _read(folder / "trace.jsonl", data)


@contextlib.contextmanager
def parquet_trace(folder: Path) -> Iterator[Check]:
    yield lambda data: _read(folder / "trace.parquet", data)
