"""What the gateway knows of a call as it arrives, what it learns as the call ends, and what it predicts of it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mfsd.proto import ext_proc_pb2 as pb
from mfsd.serve.gateway.metrics import Metrics
from mfsd.serve.gateway.picker import Picker
from mfsd.serve.gateway.predict import Asked, Predictions, after_tool, limit_of, tools_in
from mfsd.serve.gateway.responses import PATH as RESPONSES
from mfsd.serve.gateway.settings import GatewaySettings, Predict, ReplicaSettings
from mfsd.serve.gateway.usage import CHAT, COMPLETIONS, Produced
from mfsd.serve.learn.features import CallInfo, calls_of
from mfsd.serve.learn.model import Prediction
from mfsd.serve.learn.rows import read_rows
from mfsd.serve.promise import Wanted
from tests.support.ext_proc import Log, Stream, answer_head, gateway, head

TOOLS = [{"type": "function", "function": {"name": name}} for name in "ab"]
ASKED = {"role": "user", "content": "what"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "42"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "42"}
PREDICTED = 300.4


class Scripted:
    """Stands for a learned model, and keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[CallInfo] = []

    def predict(self, call: CallInfo) -> Prediction:
        self.calls.append(call)
        return Prediction(0.5, PREDICTED)


def predictions(record: Path | str = "", model: Scripted | None = None) -> Predictions:
    made = Predictions(Predict(record=str(record)), Metrics(), Log())
    made._predictor = model  # type: ignore[assignment]
    return made


def asked(made: Predictions, body: dict[str, Any], wanted: Wanted = Wanted(), path: str = CHAT) -> Asked | None:  # noqa: B008
    return made.asked(path, body, wanted, wanted.session, 10, "request")


@pytest.mark.parametrize(
    ("path", "body", "tools", "after"),
    [
        (CHAT, {"messages": [ASKED]}, 0, False),
        (CHAT, {"messages": [ASKED], "tools": TOOLS}, 2, False),
        (CHAT, {"messages": [ASKED], "tools": TOOLS, "tool_choice": "none"}, 0, False),
        (CHAT, {"messages": [ASKED, RESULT], "tools": TOOLS, "tool_choice": "auto"}, 2, True),
        (CHAT, {"messages": [RESULT, ASKED]}, 0, False),
        (CHAT, {"messages": [], "tools": None}, 0, False),
        (CHAT, {"messages": "text", "tools": {"a": 1}}, 0, False),
        (RESPONSES, {"input": "text", "tools": TOOLS}, 2, False),
        (RESPONSES, {"input": [ASKED, OUTPUT]}, 0, True),
        (RESPONSES, {"input": [OUTPUT, ASKED]}, 0, False),
        (RESPONSES, {"input": [[7]]}, 0, False),
        (COMPLETIONS, {"prompt": "text"}, 0, None),
    ],
)
def test_tools_are_read_from_the_body(path: str, body: dict[str, Any], tools: int, after: bool | None) -> None:
    assert (tools_in(body), after_tool(path, body)) == (tools, after)


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        (COMPLETIONS, {"max_tokens": 5, "max_completion_tokens": 3}, 5),
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 3}, 3),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": None}, 5),
        (RESPONSES, {"max_output_tokens": 7, "max_tokens": 1}, 7),
        (CHAT, {"max_tokens": 0}, math.inf),
        (CHAT, {"max_tokens": "9"}, math.inf),
        (CHAT, {}, math.inf),
    ],
)
def test_the_prediction_is_never_above_the_requests_own_limit(path: str, body: dict[str, Any], limit: float) -> None:
    assert limit_of(path, body) == limit
    found = asked(predictions(model=Scripted()), {**body, "user": "u"}, path=path)
    assert found is not None and found.predicted_tokens == min(300, limit)


def test_a_request_that_names_its_length_is_not_predicted_and_one_that_names_none_of_use_is() -> None:
    made = predictions(model=Scripted())
    named, useless = (asked(made, {"messages": [ASKED]}, Wanted(expected_output_tokens=n)) for n in (70.0, 0.0))
    assert named is not None and named.predicted_tokens is None
    assert useless is not None and useless.predicted_tokens == 300


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [ASKED], "n": 2}),
        (COMPLETIONS, {"prompt": "x", "best_of": 3}),
        (COMPLETIONS, {"prompt": ["x", "y"]}),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}),
        (CHAT, {}),
        ("/v1/embeddings", {"input": "x"}),
    ],
)
def test_requests_without_one_answer_are_none_of_its_own(path: str, body: dict[str, Any]) -> None:
    assert asked(predictions(model=Scripted()), body, path=path) is None


@pytest.mark.parametrize("prompt", ["x", ["x"], [1, 2, 3], [[1, 2]]])
def test_one_prompt_in_any_form_has_one_answer(prompt: object) -> None:
    assert asked(predictions(), {"prompt": prompt, "n": 1, "best_of": None}, path=COMPLETIONS) is not None


def test_what_is_learned_from_the_record_is_what_was_known_live(tmp_path: Path) -> None:
    model, path = Scripted(), tmp_path / "requests.jsonl"
    made = predictions(path, model)
    calls: Sequence[tuple[str, str, dict[str, Any], Produced]] = (
        ("one", "planner", {"messages": [ASKED], "tools": TOOLS}, Produced(40, True)),
        ("two", "", {"prompt": "secret prompt"}, Produced(11, None)),
        ("one", "writer", {"messages": [ASKED]}, Produced(900, False)),
        ("one", "planner", {"messages": [ASKED, RESULT], "tools": TOOLS}, Produced(50, False)),
        ("", "", {"messages": [ASKED]}, Produced(5, False)),
        ("", "", {"messages": [ASKED]}, Produced(6, False)),
    )
    for number, (session, role, body, produced) in enumerate(calls):
        path_of = COMPLETIONS if "prompt" in body else CHAT
        wanted = Wanted(session=session, role=role)
        one = made.asked(path_of, body, wanted, session and "root", 100 * (number + 1), f"request-{number}")
        assert one is not None
        made.ended(one, produced)
    made.close()
    rows = read_rows(path)
    assert calls_of(rows) == model.calls
    assert [call.position for call in model.calls] == [0, 0, 1, 2, 0, 0]
    assert model.calls[3] == CallInfo("planner", 2, 1, 2, 400, 260, True, True, 40)
    assert [(row.output_length, row.tool_call) for row in rows] == [tuple(call[3]) for call in calls]
    assert len({row.session_id for row in rows}) == 4
    assert rows[0].group == rows[1].group is not None and rows[4].group is None, "sessions of a program stay together"
    text = path.read_text()
    assert not any(word in text for word in ("one", "root", "secret", "what", "request-4"))


def test_how_far_the_model_was_off_is_measured_beside_the_mean_that_engines_keep() -> None:
    made = predictions(model=Scripted())
    for tokens in (256, 300):
        one = asked(made, {"messages": [ASKED]})
        assert one is not None
        made.ended(one, Produced(tokens, False))
    named = asked(made, {"messages": [ASKED]}, Wanted(expected_output_tokens=9.0))
    assert named is not None
    made.ended(named, Produced(9, False))
    text = made._metrics.text().decode()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    off = {by: found[f'mfs_gateway_prediction_error_tokens_sum{{by="{by}"}}'] for by in ("model", "mean")}
    assert off == {"model": "44.0", "mean": "44.0"}
    assert found['mfs_gateway_prediction_error_tokens_count{by="model"}'] == "2.0"


def test_a_proxys_requests_are_predicted_and_recorded_too(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    settings = GatewaySettings(
        replicas=[ReplicaSettings("http://10.0.0.1:8000", name="a")], predict=Predict(record=str(path))
    )
    body = json.dumps({"messages": [ASKED]}).encode()
    answer = b'data: {"choices":[]}\n\ndata: {"usage":{"completion_tokens":12}}\n\ndata: [DONE]\n\n'
    messages = (
        pb.ProcessingRequest(request_headers=head(path=CHAT)),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)),
        pb.ProcessingRequest(response_headers=answer_head(content_type="text/event-stream")),
        pb.ProcessingRequest(response_body=pb.HttpBody(body=answer[:40])),
        pb.ProcessingRequest(response_body=pb.HttpBody(body=answer[40:], end_of_stream=True)),
    )

    async def main() -> None:
        async with gateway(settings) as made:
            assert made.predictions is not None
            made.predictions._predictor = Scripted()  # type: ignore[assignment]
            for sent in (messages, messages[:4]):  # the second one is not complete
                stream = Stream([message.SerializeToString() for message in sent])
                await Picker(made).process(None, stream)  # type: ignore[arg-type]
                passed_on = stream.sent[1].request_body.response.body_mutation.streamed_response.body
                assert json.loads(passed_on)["vllm_xargs"] == {"expected_output_tokens": 300.0}
            made.predictions.close()

    asyncio.run(main())
    assert [row.output_length for row in read_rows(path)] == [12]


def test_without_the_table_nothing_is_kept_of_requests() -> None:
    async def main() -> None:
        async with gateway(GatewaySettings(replicas=[ReplicaSettings("http://10.0.0.1:8000")])) as made:
            assert made.predictions is None

    asyncio.run(main())
