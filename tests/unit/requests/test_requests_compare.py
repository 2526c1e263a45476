"""A record of a real vLLM on the CPU beside the simulator. When the rules change, its plans do: then record another,
`python -m bench requests live --record FOLDER --requests 160 --load 1.6 --seed 2`, and pack it with xz."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from bench.requests import command
from bench.requests.compare import Token, order, recorded, simulated
from bench.sim.serving.cost import Batch, fitted
from mfsd.policy.serve import Observed, StepLoad

RECORD = Path(__file__).with_name("data") / "vllm-cpu.jsonl.xz"


def test_a_real_vllm_and_the_simulator_agree_on_plans_steps_and_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "compare.json"
    assert command.main(["compare", str(RECORD), "--json", str(file)]) == 0
    row = json.loads(file.read_text())
    assert f"plans equal to the bit: {row['plans']['made']} of {row['plans']['made']}" in capsys.readouterr().out
    assert row["plans"]["equal"] == row["plans"]["made"] == 159 and row["requests"] == 208
    for of, steps_off, tau in ((row, 0.15, 0.85), (row["at_the_machines_speed"], 0.06, 0.9)):
        assert of["steps"]["simulated"] == pytest.approx(of["steps"]["vllm"], rel=steps_off)
        assert of["busy_s"]["simulated"] == pytest.approx(of["busy_s"]["vllm"], rel=0.02)
        assert of["order"]["tau"] > tau


def test_every_request_of_the_record_is_served_with_its_tokens() -> None:
    recording = recorded(RECORD)
    outcome, _ = simulated(recording, varying=True)
    assert [r.output_tokens for r in outcome.records] == [one.outputs for one in recording.served]
    assert outcome.unfinished == 0
    planned = sum(step.plan.load.prefill_tokens for step in recording.steps)
    assert (
        outcome.replicas[0].prefill_tokens == planned == sum(one.request.num_prompt_tokens for one in recording.served)
    )


def test_orders_are_compared_by_step() -> None:
    def tokens(*steps: int) -> list[Token]:
        return [Token(float(step), step) for step in steps]

    assert order(tokens(1, 1, 2), tokens(1, 1, 2)) == {"tau": 1, "inverted": 0, "equal_places": 1, "places_off": 0}
    assert order(tokens(1, 2, 3), tokens(3, 2, 1))["tau"] == -1
    mixed = order(tokens(1, 2, 3, 4), tokens(2, 1, 3, 4))
    assert mixed["inverted"] == pytest.approx(1 / 6) and mixed["tau"] == pytest.approx(4 / 6)
    assert (mixed["equal_places"], mixed["places_off"]) == (0.5, 0.5)


def test_fitted_steps_together_take_what_they_took() -> None:
    loads = [StepLoad(n, n, 4, 400, n * n / 2) for n in (0, 100, 900, 2000, 0, 500)]
    observed = [Observed(load, 0.01 + 1e-4 * load.tokens * (1 + at % 2)) for at, load in enumerate(loads)]
    for varying in (False, True):
        seconds = fitted(observed, varying).timer()
        took = [seconds(Batch(o.load.prefill_tokens, 4, 400, o.load.prefill_pairs, 0, 0)) for o in observed]
        assert varying or sum(took) == pytest.approx(sum(o.seconds for o in observed))
        exact = [a == pytest.approx(o.seconds) for a, o in zip(took, observed, strict=True) if o.load.prefill_tokens]
        assert all(exact) == varying


@pytest.mark.parametrize("text", [b"", b"no xz"])
def test_what_is_no_record_gets_one_line(text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "d.jsonl.xz"
    path.write_bytes(text if text else lzma.compress(text))
    assert command.main(["compare", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(path) in error
