"""Whose certificate a daemon shows: a node's name is as good as the certificate that carries it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SAN = "x509_subject_alternative_name"
COMMON_NAME = "x509_common_name"


def certified_names(properties: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Names in the certificate of the other end, as gRPC's `auth_context` has them: alternative names (DNS, IP, URI),
    then the common name."""
    found = [*properties.get(SAN, ()), *properties.get(COMMON_NAME, ())]
    return list(dict.fromkeys(name.decode(errors="replace") for name in found))


def identity_problem(node: str, properties: Mapping[str, Iterable[bytes]]) -> str | None:
    """Why the holder of this certificate cannot be that node; None when it can."""
    names = certified_names(properties)
    if node in names:
        return None
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return (
        f"the certificate is for {shown or 'no name'}, not for node {node}: issue one with that name as a DNS "
        "alternative name, or set [cluster] node"
    )
