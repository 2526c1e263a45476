"""What a gateway's file may hold, and the error where it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.serve.gateway.settings import read_file
from mfsd.serve.settings import SettingsError

ONE = '[[replicas]]\nurl = "http://10.0.0.1:8000"\n'
OWN = ONE + 'models = ["m"]\ncommand = ["vllm"]\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "replicas"),
        ("replicas = []\n", "add a table"),
        *((f'[[replicas]]\nurl = "{url}"\n', "use http://HOST:PORT") for url in (
            *("10.0.0.1:8000", "ftp://10.0.0.1", "http://", "http://a:b", "http://a:0", "http://a:99999"),
            *("http://a/v1", "http://a?x=1", ""),
        )),
        (ONE + ONE, "a name of its own"),
        (ONE + 'role = "prefill"\n', "add the other role"),
        (ONE + "requests_max = 0\n", "requests_max is 0"),
        (ONE + 'tiers = ["chat"]\n', "add a table [tiers.chat]"),
        (ONE + "nonsense = 1\n", "nonsense"),
        ("drain_s = -1\n" + ONE, "drain_s is -1"),
        ("lame_duck_s = nan\n" + ONE, "lame_duck_s is nan"),
        *((f'listen = "{listen}"\n' + ONE, "use HOST:PORT") for listen in ("8080", "::1:8080", "a:65536", "")),
        (ONE + '[metrics]\nlisten = "8081"\n', "listen is '8081': use HOST:PORT"),
        (ONE + "[admission.requests_max]\nbulk = 4\n", "add a table [tiers.bulk]"),
        (ONE + "[tiers.default]\n", "tiers.default"),
        (ONE + "[admission]\nwait_max_s = 0\n", "wait_max_s is 0"),
        (ONE + "[state]\npoll_ms = 1\n", "poll_ms is 1"),
        (ONE + "[state]\nlost_after_s = 0\n", "lost_after_s is 0"),
        (ONE + '[state]\ncoordinators = ["coord-1"]\n', "coordinators[0]"),
        (ONE + 'each_address = true\nport = "10.1.0.7"\n', "port belongs to one engine"),
        (ONE + '[ext_proc]\nlisten = "9002"\n', "listen is '9002': use HOST:PORT"),
        (ONE + '[ext_proc]\nlisten = "[::]:9002"\nkey = "k"\n', "certificate is missing"),
        (ONE + '[ext_proc]\nlisten = "[::]:9002"\nca = "c"\n', "ca is 'c': add certificate and key"),
        ('[[replicas]]\nurl = "http://vllm:8000"\n[ext_proc]\nlisten = "[::]:9002"\n', "replicas[0].url"),
        (
            ONE + 'role = "prefill"\n[[replicas]]\nurl = "http://10.0.0.2:1"\nrole = "decode"\n'
            '[ext_proc]\nlisten = "[::]:9002"\n', "replicas[0].role",
        ),
        (ONE + 'command = ["vllm"]\n', "models is missing"),
        (ONE + 'models = ["m"]\ncommand = [""]\n', "command has an empty word"),
        (ONE + 'models = ["m"]\ncommand = ["vllm"]\neach_address = true\n', "command belongs to one engine"),
        (ONE + 'models = ["m"]\ncommand = ["vllm"]\n[residency]\nmemory_bytes = 5\n', "replicas[0].memory_bytes is 0"),
        (ONE + 'sleep = "vllm"\nweights_bytes = 5\n', "the gateway puts only its own engines to sleep"),
        (
            OWN + 'role = "decode"\nsleep = "vllm"\nweights_bytes = 5\n',
            "an engine of role decode has registered its KV memory",
        ),
        (OWN + 'sleep = "vllm"\n', "weights_bytes is 0: an engine that sleeps has its weights in host memory"),
        (OWN + "sleeping_bytes = 5\n", "sleeping_bytes is 5: it is for engines that sleep, so set sleep, too"),
        (
            OWN + 'sleep = "vllm"\nweights_bytes = 5\nsleeping_bytes = 4\nmemory_bytes = 8\n',
            "memory_bytes is 8: use at least weights_bytes and sleeping_bytes, which are 9 together",
        ),
        (
            OWN + 'sleep = "vllm"\nweights_bytes = 5\n[residency]\nhost_memory_bytes = 4\n',
            "residency.host_memory_bytes is 4: use at least replicas[0].weights_bytes, 5",
        ),
        (OWN + 'sleep = "deep"\n', "'deep': use vllm, sglang"),
        (ONE + "[residency]\nsleep_max_s = 0\n", "sleep_max_s is 0"),
        (ONE + 'api_key_file = "/nowhere/key"\n', "replicas[0].api_key_file is /nowhere/key: No such file"),
        (ONE + 'api_key_file = "/dev/null"\n', "use a file that contains only the key"),
        (ONE + '[predict]\nmodel = "/nowhere/m"\n', "predict.model: /nowhere/m: No such file or directory; learn one"),
        (ONE + '[predict]\nmodel = "/etc/passwd"\n', "predict.model: /etc/passwd: no model of output lengths"),
        (ONE + '[predict]\nrecord = "a\\u0000b"\n', "record has a zero byte"),
        (ONE + '[predict]\nmodels = "m"\n', "`models`; did you mean model?"),
        (ONE + "[residency]\nidle_s = nan\n", "idle_s is nan"),
        (ONE + '[route]\nrouter = "owed"\n', "use transfer"),
        (ONE + '[route]\ndecode = "prefix"\n', "use owed"),
        (ONE + '[route]\nrouter = "round-robin"\n', "use least-loaded, sticky, prefix, locality, transfer, owed - at"),
        (ONE + 'role = "prefil"\n', "'prefil': use both, prefill, decode - at `$.replicas[0].role`"),
        (ONE + 'rol = "prefill"\n', "`rol`; did you mean role? - at `$.replicas[0]`"),
        ('[[replica]]\nurl = "http://10.0.0.1:1"\n', "`replica`; did you mean replicas?"),
        (ONE + "[residency]\nx = 1\n", "`x`; there are memory_bytes, "),
    ],
)  # fmt: skip
def test_wrong_settings_name_the_field_and_the_remedy(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        read_file(file)
    assert named in str(error.value) and str(error.value).startswith(f"{file}: ") and "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_file(tmp_path / "none.toml")


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('listen = "[::1]:9000"\n' + ONE + "[admission.requests_max]\ndefault = 4\n")
    settings = read_file(file)
    assert settings.host_and_port == ("::1", 9000) and settings.replicas[0].shown_name == "10.0.0.1:8000"
