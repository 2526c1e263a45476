"""Reads and writes the messages between a proxy and the endpoint picker: Envoy's external processing, with the names of
the Gateway API's inference extension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.struct_pb2 import Struct

from mfsd.proto import ext_proc_pb2 as pb
from mfsd.serve.gateway.answer import Refused, problem
from mfsd.serve.headers import HEADERS, OBJECTIVES

NAMESPACE: Final = "envoy.lb"
ENDPOINT: Final = "x-gateway-destination-endpoint"
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
UPSTREAM: Final = "upstream.address"
"""Envoy's own attribute, used if nothing sets SERVED."""
PART_BYTES_MAX: Final = 60_000
"""Largest part of a body that is sent back in one message. Proxies accept 64 KiB."""
_OVERWRITE: Final = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

Headers = list[tuple[bytes, bytes]]


class Head(NamedTuple):
    """The head of a request."""

    method: str
    path: str
    """The path without the query."""
    headers: Headers


def headers_of(found: pb.HttpHeaders) -> Headers:
    """Returns the headers, with names in lower case as proxies send them."""
    return [
        (header.key.encode("latin-1", "replace"), header.raw_value or header.value.encode("latin-1", "replace"))
        for header in found.headers.headers
    ]


def head_of(found: pb.HttpHeaders) -> Head:
    headers = headers_of(found)
    of_http = {name: value.decode("latin-1") for name, value in headers if name.startswith(b":")}
    return Head(of_http.get(b":method", ""), of_http.get(b":path", "").partition("?")[0], headers)


def subset_of(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """Returns the endpoints of which one must be chosen; None: any may be."""
    fields = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in fields or SUBSET not in fields[SUBSET_NAMESPACE].fields:
        return None
    value = fields[SUBSET_NAMESPACE].fields[SUBSET]
    if value.WhichOneof("kind") == "string_value":
        texts: Iterable[str] = value.string_value.split(",")
    else:
        texts = [one.string_value for one in value.list_value.values]
    return frozenset(text.strip() for text in texts if text.strip())


def served_of(message: pb.ProcessingRequest) -> str:
    """Returns the endpoint that answers; empty if the proxy does not report it."""
    fields = message.metadata_context.filter_metadata
    if NAMESPACE in fields and SERVED in fields[NAMESPACE].fields:
        return fields[NAMESPACE].fields[SERVED].string_value
    for attributes in message.attributes.values():
        if UPSTREAM in attributes.fields:
            return attributes.fields[UPSTREAM].string_value
    return ""


# ---- what is written -------------------------------------------------------------------------------------------------


def _set(name: str, value: str) -> pb.HeaderValueOption:
    return pb.HeaderValueOption(
        header=pb.HeaderValue(key=name, raw_value=value.encode("latin-1", "replace")), append_action=_OVERWRITE
    )


def mutation(endpoints: Sequence[str], words_of: Headers) -> pb.HeaderMutation:
    """Returns the changes to a request's headers. words_of: headers of a request whose words are now in its body;
    empty: the words stay in the headers."""
    carried = {name.decode() for name, _ in words_of if name in HEADERS or name in OBJECTIVES}
    return pb.HeaderMutation(set_headers=[_set(ENDPOINT, ",".join(endpoints))], remove_headers=sorted(carried))


def metadata(endpoints: Sequence[str]) -> Struct:
    found = Struct()
    found.update({NAMESPACE: {ENDPOINT: ",".join(endpoints)}})
    return found


def to_head(endpoints: Sequence[str], words_of: Headers) -> pb.ProcessingResponse:
    """Returns the answer to the head of a request for which endpoints were chosen."""
    common = pb.CommonResponse(header_mutation=mutation(endpoints, words_of), clear_route_cache=True)
    return pb.ProcessingResponse(
        request_headers=pb.HeadersResponse(response=common), dynamic_metadata=metadata(endpoints)
    )


def to_whole_body(endpoints: Sequence[str], words_of: Headers, body: bytes) -> pb.ProcessingResponse:
    """Returns the same for a proxy that holds the head back until it has the body."""
    common = pb.CommonResponse(
        header_mutation=mutation(endpoints, words_of),
        body_mutation=pb.BodyMutation(body=body),
        clear_route_cache=True,
    )
    common.header_mutation.set_headers.append(_set("content-length", str(len(body))))
    return pb.ProcessingResponse(request_body=pb.BodyResponse(response=common), dynamic_metadata=metadata(endpoints))


def _part(body: bytes, last: bool) -> pb.BodyResponse:
    streamed = pb.StreamedBodyResponse(body=body, end_of_stream=last)
    return pb.BodyResponse(response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed)))


def to_request_body(body: bytes, last: bool) -> Iterator[pb.ProcessingResponse]:
    for first in range(0, max(1, len(body)), PART_BYTES_MAX):
        end = first + PART_BYTES_MAX
        yield pb.ProcessingResponse(request_body=_part(body[first:end], last and end >= len(body)))


def to_answer_body(body: bytes, last: bool) -> pb.ProcessingResponse:
    return pb.ProcessingResponse(response_body=_part(body, last))


def to_answer_head(replica: str) -> pb.ProcessingResponse:
    common = pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=[_set("x-mfs-replica", replica)]))
    return pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=common))


def immediate(refused: Refused) -> pb.ProcessingResponse:
    headers = [_set("content-type", "application/json")]
    if refused.retry_after_s:
        headers.append(_set("retry-after", str(refused.retry_after_s)))
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=refused.status),
            headers=pb.HeaderMutation(set_headers=headers),
            body=problem(refused.message, refused.kind, refused.code, **refused.more),
            details=f"mfs_{refused.code}",
        )
    )
