"""What proxies send to the gateway's endpoint picker: any sequence of messages on one request's stream. And the answers
of engines, where the gateway reads them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from mfsd.proto import ext_proc_pb2 as pb
from mfsd.serve.gateway import picked
from mfsd.serve.gateway.picker import Picker
from mfsd.serve.gateway.responses import PATH as RESPONSES
from mfsd.serve.gateway.settings import Admission, GatewaySettings, ReplicaSettings
from mfsd.serve.gateway.usage import CHAT, COMPLETIONS, TOKENS_MAX, AnswerReader
from mfsd.serve.settings import Tier
from tests.fuzz.inputs import BETWEEN, messages
from tests.fuzz.targets.cluster import Runner
from tests.support.ext_proc import Aborted, Stream, answer_head, gateway, head

Check = Callable[[bytes], None]

ANSWER_S = 100.0
SETTINGS = GatewaySettings(
    replicas=[
        ReplicaSettings("http://10.0.0.1:8000", name="a", requests_max=2),
        ReplicaSettings("http://10.0.0.2:8000", name="b", requests_max=1, models=["m"]),
    ],
    admission=Admission(queue_max=2, wait_max_s=0.01, body_max_bytes=1 << 20),
    tiers={"chat": Tier(ttft_ms=500, importance=1)},
)


def _good() -> tuple[bytes, ...]:
    body = json.dumps({"model": "m", "prompt": "one two", "vllm_xargs": {"session": "s", "ttft_slo_ms": 1}}).encode()
    asks = pb.ProcessingRequest(request_headers=head(x_tier="chat", x_session_id="s", x_slo_ttft_ms="12"))
    hinted = pb.ProcessingRequest(request_headers=head(path="/v1/chat/completions?x=1"))
    hinted.metadata_context.filter_metadata[picked.SUBSET_NAMESPACE].update({picked.SUBSET: ["10.0.0.2:8000", 5, None]})
    buffered = pb.ProcessingRequest(request_headers=head())
    buffered.protocol_config.request_body_mode = pb.BUFFERED
    alone = pb.ProcessingRequest(request_headers=head("GET", "/v1/models", last=True))
    whole = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True))
    part = pb.ProcessingRequest(request_body=pb.HttpBody(body=body))
    trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
    answers = pb.ProcessingRequest(response_headers=answer_head(content_type="text/event-stream"))
    answers.metadata_context.filter_metadata[picked.NAMESPACE].update({picked.SERVED: "10.0.0.2:8000"})
    lost = pb.ProcessingRequest(response_headers=answer_head("503", last=True))
    lost.attributes["envoy.filters.http.ext_proc"].update({picked.UPSTREAM: "10.0.0.1:8000"})
    data = pb.ProcessingRequest(response_body=pb.HttpBody(body=b"data: x\n\n"))
    done = pb.ProcessingRequest(response_body=pb.HttpBody(end_of_stream=True))
    ended = pb.ProcessingRequest(response_trailers=pb.HttpTrailers())
    streams = (
        [asks, whole, answers, data, done],
        [hinted, part, trailers, answers, data, ended],
        [buffered, whole, lost],
        [alone, answers, done],
        [asks, pb.ProcessingRequest(request_body=pb.HttpBody(body=b'{"prompt":[[1,2],"x",{}]}', end_of_stream=True))],
    )
    return tuple(BETWEEN.join(message.SerializeToString() for message in stream) for stream in streams)


STREAMS = _good()


async def _tell_picker(data: bytes) -> None:
    async with gateway(SETTINGS) as made:
        picker = Picker(made)

        async def conversation(received: bytes, ends: bool = True) -> Stream:
            stream = Stream(messages(received)[:60], ends)
            with contextlib.suppress(Aborted):
                await picker.process(None, stream)  # type: ignore[arg-type]
            assert stream.reason.isprintable()
            return stream

        open_one = asyncio.create_task(conversation(data, ends=False))
        both = await asyncio.wait_for(asyncio.gather(conversation(data), conversation(data)), ANSWER_S)
        open_one.cancel()
        await asyncio.wait({open_one}, timeout=ANSWER_S)
        for replica in made.replicas.all:
            assert (replica.waiting, replica.running, replica.waiting_tokens) == (0, 0, 0), replica.name
        assert not any(made.admission.of_tier.values()) and not len(made.admission)
        for stream in both:
            for reply in stream.sent:
                if reply.WhichOneof("response") == "immediate_response":
                    json.loads(reply.immediate_response.body)
        honest = await asyncio.wait_for(conversation(STREAMS[0]), ANSWER_S)
        assert honest.sent[0].WhichOneof("response") == "request_headers"


@contextlib.contextmanager
def picker(_folder: Path) -> Iterator[Check]:
    with Runner() as runner:
        yield lambda data: runner.run(_tell_picker(data))


USAGE = {"prompt_tokens": 3, "completion_tokens": 4}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWERS = (
    json.dumps({"choices": [{"text": "a"}], "usage": USAGE}).encode(),
    json.dumps({"choices": [{"message": {"content": None, "tool_calls": [CALL]}}], "usage": USAGE}).encode(),
    json.dumps({"output": [{"type": "function_call"}], "usage": {"input_tokens": 3, "output_tokens": 4}}).encode(),
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":4}}\n\ndata: [DONE]\n\n',
    b'event: response.completed\ndata: {"response":{"output":[],"usage":{"output_tokens":4}}}\r\n\r\n',
)


@contextlib.contextmanager
def answers(_folder: Path) -> Iterator[Check]:
    """An answer has a length within bounds, or none."""

    def check(data: bytes) -> None:
        for path in (COMPLETIONS, CHAT, RESPONSES):
            for stream in (False, True):
                reader = AnswerReader(path, stream)
                for at in range(0, len(data), 100):
                    reader.part(data[at : at + 100])
                produced = reader.end()
                assert produced is None or 0 <= produced.tokens <= TOKENS_MAX

    yield check
