"""Checks a daemon's certificate: a node's name is only as trustworthy as the certificate that carries it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SAN = "x509_subject_alternative_name"
COMMON_NAME = "x509_common_name"


def certified_names(properties: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Returns the names in the other end's certificate from gRPC's `auth_context`: alternative names (DNS, IP, URI),
    then the common name."""
    found = [*properties.get(SAN, ()), *properties.get(COMMON_NAME, ())]
    return list(dict.fromkeys(name.decode(errors="replace") for name in found))


def identity_problem(node: str, properties: Mapping[str, Iterable[bytes]]) -> str | None:
    """Returns why the holder of this certificate cannot be that node; None if it can."""
    names = certified_names(properties)
    if node in names:
        return None
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return (
        f"the certificate is for {shown or 'no name'}, not for node {node}: issue one with that name as a DNS "
        "alternative name, or set [cluster] node"
    )
