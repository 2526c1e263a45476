"""Runs a target in Python by coverage: ``python -m tests.fuzz.guided TARGET FOLDER [libFuzzer's options]``.

The inputs that reached something new stay in FOLDER/corpus, the one that broke a promise in FOLDER.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mfsd", "bench", "tomllib", "tomli"]):
    from tests.fuzz.registry import TARGETS


def main(name: str, folder: Path, options: list[str]) -> None:
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    target = TARGETS[name]
    for number, good in enumerate(target.good()):
        (corpus / f"good-{number}").write_bytes(good)
    place = tempfile.mkdtemp(prefix="mfs-fuzz-", dir="/tmp")  # libFuzzer ends the process, so it is not removed here
    context = target.open(Path(place))
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}/", str(corpus)], context.__enter__())
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
