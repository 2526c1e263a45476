"""A bug report has no secrets."""

from __future__ import annotations

from mfsd.cli.commands.bugreport import redacted, variables


def test_only_known_variables_and_none_that_looks_like_a_secret() -> None:
    text = variables(
        {"MFS_MODE": "observe", "NCCL_IB_TC": "106", "HF_TOKEN": "hf_1", "VLLM_API_KEY": "s3cret", "HOME": "/root"}
    )
    assert text == "MFS_MODE=observe\nNCCL_IB_TC=106\nVLLM_API_KEY=(left out)\n"


def test_users_in_urls_are_left_out() -> None:
    assert redacted("otlp = http://user:pw@collector:4318/x") == "otlp = http://(left out)@collector:4318/x"
    assert redacted("http://collector:4318") == "http://collector:4318"
