"""The page of words."""

from __future__ import annotations

from dataclasses import replace

from server.doctor.diagnosis import AWAY, BESIDE, INSIDE, NOBODY, Findings, report_lines

DISTURBED_STEPS = [0.0, 0.040, *(9.0 for _ in range(16))]
STEPS = [0.0, *(0.040 + 0.004 * row for row in range(17))]


def found(**rates: float) -> Findings:
    all_rates = {NOBODY: 25.0, INSIDE: rates["inside"], BESIDE: 20.0, f"{AWAY} near": rates["away"]}
    return Findings(
        step_s=STEPS,
        beside_s=STEPS,
        guess_s=0.0003,
        guess_beside_s=0.0006,
        n_tokens=300,
        acceptance=0.8,
        redis_s=0.0001,
        weights_bytes=3 << 30,
        free_bytes=22 << 30,
        free_gpu_bytes=[80 << 30],
        rates=all_rates,
        chosen=INSIDE,
    )


def test_verdict_says_what_pays():
    text = "\n".join(report_lines(found(inside=60.0, away=90.0)))
    assert "40.0 ms for a token; at once 4 take 1.30 times as long" in text
    assert "3.0 GiB of weights; 22.0 GiB free, 80.0 GiB on a GPU" in text
    assert "0.30 ms for a guess; 80 % of 300 guesses were right" in text
    assert "the draft model inside the lead 60.0 2.40 times as duo up does" in " ".join(text.split())
    assert (
        "duo up should be 2.4 times as fast here as without drafts. A second device could make it 3.6" in text
    )


def test_verdict_says_what_loses():
    text = "\n".join(report_lines(found(inside=25.5, away=26.0)))
    assert "drafts made on this machine gain little" in text
    assert "A second device adds little" in text


def test_small_weights_are_told_in_mib():
    small = replace(found(inside=60.0, away=90.0), weights_bytes=31 << 20)
    assert "memory   31 MiB of weights; 22.0 GiB free" in "\n".join(report_lines(small))


def test_busy_machine_gets_no_verdict():
    text = "\n".join(report_lines(Findings(DISTURBED_STEPS, weights_bytes=3 << 30, disturbed=True)))
    assert "times as long" not in text
    assert "Verdict" not in text
    assert text.splitlines()[-1].startswith("No verdict: other programs keep this machine busy")


def test_disturbed_drafter_is_left_out():
    partly = replace(found(inside=60.0, away=90.0), beside_s=None, guess_beside_s=None, beside_disturbed=True)
    text = "\n".join(report_lines(partly))
    assert "both     at once: not known, since other programs keep this machine busy" in text
    assert "duo up should be 2.4 times as fast" in text


def test_oversized_draft_model_has_reason():
    text = "\n".join(report_lines(Findings(STEPS, obstacle="EOS tokens differ: lead 2, drafter 7")))
    assert text.endswith("cannot draft for this target: EOS tokens differ: lead 2, drafter 7.")
