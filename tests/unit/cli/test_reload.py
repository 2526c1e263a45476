"""What `mfsctl reload` says where there is no file to read."""

from __future__ import annotations

import pytest

from mfsd.cli.commands import reload as module
from mfsd.node.control import ReloadReply


def test_without_a_file_it_says_how_to_have_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "ask_or_exit", lambda *_: ReloadReply(config_file=None, applied=[], needs_restart=[]))
    module.reload([], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "nothing to read" in printed and "--config FILE" in printed and "/etc/mfs/mfsd.toml" in printed
