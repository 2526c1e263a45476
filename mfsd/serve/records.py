"""Records decisions as JSON lines, so that every plan of a live engine can be replayed elsewhere and be compared.

A file starts with a `Begin` (configuration and state), followed by one `Step` per plan. If the state does not follow
from the previous step, as after a failed plan or a change of configuration, there is another `Begin` before the step.
Each file, also a rotated one, can therefore be read by itself.
"""

from __future__ import annotations

import contextlib
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from mfsd.policy.serve import ServeConfig, ServeState, StepPlan, StepView, plan_step

FORMAT: Final = 1
SIZE_MAX_BYTES: Final = 64 << 20
FILES: Final = 4
FLUSH_S: Final = 1.0
SUFFIX: Final = ".jsonl"
PACKED: Final = ".xz"

_encode = msgspec.json.Encoder().encode


class Begin(msgspec.Struct, frozen=True, tag="begin", tag_field="kind"):
    """Configuration and state from which the following steps start."""

    config: ServeConfig
    state: ServeState
    format: int = FORMAT
    engine: str = ""


class Step(msgspec.Struct, frozen=True, tag="step", tag_field="kind"):
    """One plan: the view that it was made from, the time, and the decision."""

    now_s: float
    view: StepView
    plan: StepPlan


_decoder = msgspec.json.Decoder(Begin | Step)


class Recorder:
    """Writes to `path`; rotated files are `path`.1 (the latest) and so on. If the disk cannot be written, the record
    ends with one call of `warn`, and the engine's step goes on."""

    def __init__(
        self,
        path: Path,
        warn: Callable[[str], object],
        engine: str = "",
        size_max_bytes: int = SIZE_MAX_BYTES,
        files: int = FILES,
    ) -> None:
        self.path = path
        self._warn, self._engine = warn, engine
        self._size_max, self._files = size_max_bytes, max(1, files)
        self._file: IO[bytes] | None = None
        self._size = 0
        self._flushed_s = 0.0
        self._after: tuple[ServeConfig, ServeState] | None = None
        self._failed = False

    def step(
        self,
        config: ServeConfig,
        before: ServeState,
        view: StepView,
        now_s: float,
        plan: StepPlan,
        after: ServeState,
    ) -> None:
        """Records one plan; `before` and `after` are the states around it."""
        if self._failed:
            return
        try:
            self._step(config, before, view, now_s, plan)
        except OSError as error:
            self._failed = True
            self._warn(f"{self.path}: cannot be written ({error.strerror or error}); decisions are no longer recorded")
            self.close()
            return
        self._after = (config, after)

    def _step(self, config: ServeConfig, before: ServeState, view: StepView, now_s: float, plan: StepPlan) -> None:
        line = _encode(Step(now_s, view, plan)) + b"\n"
        if self._file is None or self._size + len(line) > self._size_max:
            self._rotate()
            self._after = None
        if self._after is None or self._after[0] is not config or self._after[1] is not before:
            self._write(_encode(Begin(config, before, engine=self._engine)) + b"\n")
        self._write(line)
        if self._file is not None and not 0 <= now_s - self._flushed_s < FLUSH_S:
            self._file.flush()
            self._flushed_s = now_s

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        self._file.write(line)
        self._size += len(line)

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
        # also at the first plan: in a container, a restarted engine may have the same name as the one before
        for number in range(self._files - 1, 0, -1):
            newer = self.path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                newer.replace(self._numbered(number))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("wb")
        self._size = 0

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


class Difference(NamedTuple):
    """A plan whose replay has another result."""

    path: Path
    line: int
    recorded: StepPlan
    replayed: StepPlan | None
    """None: the replay raised `error`."""
    error: str = ""


class Replayed(NamedTuple):
    """Result of the replay of one or more files."""

    files: int
    steps: int
    """Number of replayed plans."""
    differing: int
    """Number of these with another result."""
    first: Difference | None = None
    cut: tuple[Path, ...] = ()
    """Files whose last line is incomplete, as while an engine writes it. The line is not counted."""

    @property
    def equal(self) -> bool:
        """Whether every plan is equal to the bit; False if there was none."""
        return self.steps > 0 and self.differing == 0


class RecordError(Exception):
    """The file is not a record. ``str()`` is one line that names file, line and reason."""


def files_of(path: Path) -> list[Path]:
    """Returns the files of a record: the path itself, or all record files of a folder, rotated ones included."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if SUFFIX in file.suffixes and file.is_file())


def read(path: Path) -> Iterator[tuple[int, Begin | Step]]:
    """Yields the lines with their numbers; a file whose name ends in .xz is unpacked. An incomplete last line is left
    out. RecordError for any other line that is not valid."""
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield number, _decoded(path, number, line)
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise RecordError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _opened(path: Path) -> IO[bytes]:
    return lzma.open(path, "rb") if path.suffix == PACKED else path.open("rb")


def _decoded(path: Path, number: int, line: bytes) -> Begin | Step:
    try:
        row: Begin | Step = _decoder.decode(line)
    except (msgspec.DecodeError, ValueError) as error:
        raise RecordError(f"{path}:{number}: not a recorded decision ({error}); use a file that MFS wrote") from None
    if isinstance(row, Begin) and row.format != FORMAT:
        raise RecordError(f"{path}:{number}: format {row.format}, this version reads {FORMAT}; replay it with its own")
    return row


def replay(path: Path) -> Replayed:
    """Replays every plan of a file or of a folder's files, and compares it as JSON, to the bit."""
    found = files_of(path)
    if not found:
        raise RecordError(f"{path}: no file *{SUFFIX} in it; name a file or folder that an engine recorded to")
    steps = differing = 0
    first: Difference | None = None
    for file in found:
        for difference in _replayed(file):
            steps += 1
            if difference is not None:
                differing += 1
                first = first or difference
    return Replayed(len(found), steps, differing, first, tuple(file for file in found if _is_cut(file)))


def _replayed(path: Path) -> Iterator[Difference | None]:
    config, state = ServeConfig(), None
    for number, row in read(path):
        if isinstance(row, Begin):
            config, state = row.config, row.state
            continue
        if state is None:
            raise RecordError(f"{path}:{number}: a step before any state; the file's beginning is missing")
        try:
            plan, state = plan_step(row.view, state, config, row.now_s)
        except Exception as error:  # any error is a difference: the recorded plan had none
            yield Difference(path, number, row.plan, None, f"{type(error).__name__}: {error}")
            continue
        yield None if _encode(plan) == _encode(row.plan) else Difference(path, number, row.plan, plan)


def _is_cut(path: Path) -> bool:
    if path.suffix == PACKED:
        return False  # packed files are complete
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"
