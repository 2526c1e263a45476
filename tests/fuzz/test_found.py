"""Inputs that broke a promise once, one for each defect that was mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.proto import ext_proc_pb2 as proxy
from mfsd.proto import mfs_pb2 as pb
from tests.fuzz.inputs import BETWEEN
from tests.fuzz.registry import TARGETS
from tests.fuzz.targets.cluster import TERM
from tests.fuzz.targets.files import TRACES, parquet_traces
from tests.fuzz.targets.recordings import files as recordings
from tests.support.ext_proc import head

ROW = b'{"timestamp": 0, "input_length": 9, '


def hello(node: str, *names: str) -> bytes:
    """Ports that are numbered from 1, or have these names from 0 on."""
    ports = [pb.Port(number=number, name=name) for number, name in enumerate(names)] or [pb.Port(number=1, name="x/in")]
    return pb.FromNode(hello=pb.Hello(protocol=1, protocol_oldest=1, node=node, ports=ports)).SerializeToString()


def unit(name: str) -> bytes:
    batch = pb.Batch(batch_id=1, unit=name, requests=[pb.Request(request_id=1)])
    return pb.FromNode(report=pb.Report(term=TERM, arrived=[batch])).SerializeToString()


def reported(message: pb.ToNode) -> bytes:
    return message.SerializeToString()


def recording(event: bytes = b"{}", base: bytes = b"0", node: bytes = b"a") -> bytes:
    clocks = b'"monotonic_ns":0,"realtime_ns":0,"uncertainty_ns":0,"realtime_drift_ns":0'
    about = b'{"pid":1,"node":"%s","daemon_pid":1,"epoch":1,"lost_events":0,%s}' % (node, clocks)
    return b'{"traceEvents":[%s],"mfs":{"base_realtime_ns":%s,"nodes":[%s]}}' % (event, base, about)


def asked(body: bytes) -> bytes:
    """Of the endpoint picker."""
    part = proxy.ProcessingRequest(request_body=proxy.HttpBody(body=body, end_of_stream=True))
    return BETWEEN.join((proxy.ProcessingRequest(request_headers=head()).SerializeToString(), part.SerializeToString()))


FOUND = {
    "a request's body with a name that is not UTF-8": ("endpoint-picker", asked(b'{"a\x9a": 1}')),
    "a request's body nested without end": ("endpoint-picker", asked(b"[" * 100_000)),
    "an engine's status nested without end": ("engine-status", b'{"format": 1, "requests": ' + b"[" * 100_000),
    "a line separator in a value": ("configuration", '[coordinator]\netcd = ["e1:2\u2028379"]\n'.encode()),
    "a number that Python does not read": ("configuration", b"a = " + b"9" * 5000),
    "a policy that is not UTF-8": ("policy", b'[profiles.a]\nsummary = "\xff"'),
    "a policy with tables without end": ("policy", b"a = " + b"[" * 5000),
    "a policy with a line break in a name": ("policy", b'"a\\nb" = 1\n'),
    "a policy with a long number": ("policy", b"a = " + b"9" * 5000),
    "a running configuration that is not YAML": ("switch", b"cumulus" + BETWEEN + b"a: ["),
    "a running configuration nested without end": ("switch", b"sonic" + BETWEEN + b"[" * 100_000),
    "a trace that is not UTF-8": ("trace", ROW + b'"a": "\xff"}'),
    "a trace nested without end": ("trace", b"[" * 100_000),
    "a time beyond all floats": ("trace", b'{"input_length": 9, "timestamp": 1' + b"0" * 400 + b"}"),
    "block ids that are no list": ("trace", ROW + b'"hash_ids": 5}'),
    "block ids that are lists": ("trace", b'{"chat_id": 1, "timestamp": 0, "input_length": 9, "hash_ids": [[1]]}'),
    "block sizes that are text": ("trace", ROW + b'"hash_ids": [1], "block_tokens": ["a"]}'),
    "Parquet with a broken footer": (
        "parquet-trace",
        parquet_traces()[0].replace(b"\x15\x00\x12\x00\x00", b"\x15\x00\xff\x00\x00"),
    ),
    "Parquet with a name that is not UTF-8": ("parquet-trace", parquet_traces()[1].replace(b"chat_id", b"chat\xc2id")),
    "a request with a line separator": ("control-messages", '{"version":1,"request":"a\u2028"}'.encode()),
    "a hello that a later leader cannot number": ("coordinator-link", hello("n1")),
    "a node whose name moves the cursor": ("coordinator-link", hello("n\x1b[2J", "x/in")),
    "a port with a name without end": ("coordinator-link", hello("n1", "x" * 5000)),
    "a unit whose name moves the cursor": ("coordinator-link", hello("n1", "x/in") + BETWEEN + unit("u\x1b[2J")),
    "a leader at no address": ("daemon-link", reported(pb.ToNode(standby=pb.Standby(leader="\x1b[2J", term=5)))),
    "a refusal of several lines": ("daemon-link", reported(pb.ToNode(refusal=pb.Refusal(reason="a\nb\x1b[2J")))),
    "a mode that breaks the line": ("environment", b"a\nb\x1b[2J"),
    "a recorded event of a process that is a list": ("trace-file", recording(b'{"pid":[]}')),
    "a recording that began beyond all floats": ("trace-file", recording(base=b"9" * 400)),
    "a recorded event beyond all floats": ("trace-file", recording(b'{"ts":1' + b"0" * 400 + b"}")),
    "a recording of a node whose name moves the cursor": ("trace-file", recording(node=b"\\u001b[2J")),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_mended_defect_stays_mended(name: str, tmp_path: Path) -> None:
    target, data = FOUND[name]
    with TARGETS[target].open(tmp_path) as check:
        check(data)


def test_the_good_ones_are_read(tmp_path: Path) -> None:
    """A target that refuses everything would hold every promise."""
    from bench.sim.workload import read_trace
    from mfsd.observe.perfetto import merge, read

    for number, good in enumerate((*TRACES, *parquet_traces())):
        file = tmp_path / f"trace.{'jsonl' if number < len(TRACES) else 'parquet'}"
        file.write_bytes(good)
        assert read_trace(file)
    assert merge([read(good) for good in recordings() if BETWEEN not in good]).traceEvents
