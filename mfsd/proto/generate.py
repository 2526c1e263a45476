"""Generates the message classes of the ``.proto`` files: ``python -m mfsd.proto.generate``.

They are checked in, so that neither building nor running MFS needs a protocol compiler. The compiler's version is
pinned (extra ``dev``): code of an older compiler works with newer protobuf libraries, not the other way round.
"""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = Path(__file__).parent
FILES = ("mfs", "etcd", "ext_proc")


def generate(target: Path) -> None:
    """Writes ``mfsd/proto/*_pb2.py`` and their type stubs below ``target``. Raises RuntimeError if the compiler
    fails."""
    import grpc_tools
    from grpc_tools import protoc

    code = protoc.main(
        [
            "protoc",
            f"--proto_path={PACKAGE.parents[1]}",
            f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",  # google/protobuf
            f"--python_out={target}",
            f"--pyi_out={target}",
            *(f"mfsd/proto/{name}.proto" for name in FILES),
        ]
    )
    if code != 0:
        raise RuntimeError(f"protoc ended with {code}")


if __name__ == "__main__":
    generate(PACKAGE.parents[1])
    sys.exit(0)
