"""What an answer says of its length and of tools, whole and as a stream, in parts of any size."""

from __future__ import annotations

import json

import pytest

from mfsd.serve.gateway.responses import PATH as RESPONSES
from mfsd.serve.gateway.usage import CHAT, COMPLETIONS, KEPT_MAX_BYTES, AnswerReader, Produced

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}


def whole(path: str, answer: object) -> Produced | None:
    reader = AnswerReader(path, stream=False)
    reader.part(json.dumps(answer).encode())
    return reader.end()


def stream(path: str, *events: object, size: int = 1 << 20) -> Produced | None:
    text = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    reader = AnswerReader(path, stream=True)
    for at in range(0, len(text), size):
        reader.part(text[at : at + size])
    return reader.end()


def chat(message: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE}


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}], "usage": None}


LAST = {"choices": [], "usage": USAGE}


def test_whole_answers() -> None:
    assert whole(COMPLETIONS, {"choices": [{"text": "x"}], "usage": USAGE}) == Produced(7, None)
    assert whole(CHAT, chat({"content": "x", "tool_calls": []})) == Produced(7, False)
    assert whole(CHAT, chat({"content": None, "tool_calls": [CALL]})) == Produced(7, True)
    answer = {"output": [{"type": "reasoning"}, {"type": "message"}], "usage": {"input_tokens": 1, "output_tokens": 9}}
    assert whole(RESPONSES, answer) == Produced(9, False)
    assert whole(RESPONSES, {**answer, "output": [{"type": "function_call"}]}) == Produced(9, True)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_streams_in_parts_of_any_size(size: int) -> None:
    text = {"choices": [{"text": "a"}]}
    assert stream(COMPLETIONS, text, text, LAST, size=size) == Produced(7, None)
    assert stream(CHAT, delta(content="a"), delta(content="b"), LAST, size=size) == Produced(7, False)
    called = (delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]), delta(tool_calls=[]))
    assert stream(CHAT, *called, LAST, size=size) == Produced(7, True)
    usages = [{"choices": [{"text": "a"}], "usage": {"completion_tokens": count}} for count in (1, 2, 3)]
    assert stream(COMPLETIONS, *usages, size=size) == Produced(3, None)
    begun = {"type": "response.created", "response": {"output": [], "usage": None, "tools": [{"type": "function"}]}}
    done = {
        "type": "response.completed",
        "response": {"output": [{"type": "function_call"}], "usage": {"output_tokens": 9}},
    }
    assert stream(RESPONSES, begun, done, size=size) == Produced(9, True)


def test_a_text_that_speaks_of_usage_and_tools_is_none() -> None:
    text = json.dumps({"usage": {"completion_tokens": 99}, "tool_calls": [{"index": 0}]})
    assert stream(CHAT, delta(content=text), LAST, delta(content=text)) == Produced(7, False)
    assert stream(CHAT, delta(content=text)) is None


@pytest.mark.parametrize(
    "answer",
    [
        {}, [], {"usage": None}, {"usage": {}}, {"usage": {"completion_tokens": None}}, {"usage": "7"},
        {"usage": {"completion_tokens": -1}}, {"usage": {"completion_tokens": 1 << 40}},
        {"error": {"message": "no"}}, {"usage": {"output_tokens": 7}},
    ],
)  # fmt: skip
def test_an_answer_without_a_length_says_nothing(answer: object) -> None:
    assert whole(CHAT, answer) is None and stream(CHAT, answer) is None


def test_a_cut_answer_and_one_that_is_too_large_say_nothing() -> None:
    reader = AnswerReader(CHAT, stream=False)
    reader.part(json.dumps(chat({"content": "x"})).encode()[:-1])
    assert reader.end() is None
    for streams in (False, True):
        reader = AnswerReader(CHAT, streams)
        for _ in range(3 * KEPT_MAX_BYTES // 1000):
            reader.part(b"x" * 1000)
        assert reader.end() is None
