"""Synthetic records that cover everything on the page."""

from dataclasses import replace

from experiments.results.record import Record
from tests.experiments.reporting.test_comparison_table import make_record

HOSTILE = "</script><script>document.title = 'broken out'</script>"

TOKENS = [
    {"text": "def", "producer": "plain", "p": None, "q": None},
    {"text": " f", "producer": "accepted", "p": 0.75, "q": 0.5},
    {
        "text": "(",
        "producer": "replaced",
        "p": 0.25,
        "q": 0.001,
        "instead_of": {"text": "[", "p": 0.125, "q": 0.875},
    },
    {"text": "\n", "producer": "bonus", "p": 1.0, "q": None},
    {"text": "", "producer": "accepted", "p": 0.00001, "q": 1.0},
    {"text": HOSTILE, "producer": "accepted", "p": 0.5, "q": 0.5},
]


def prompts(accepted: list[int], tested: int = 40, seconds: float = 1.0) -> list[dict]:
    """One row per entry of `accepted`, with `tested` nodes and `seconds` where plain decoding takes 1.5 s."""
    return [
        {
            "name": f"prompt {number}",
            "category": ("writing", "code")[number % 2],
            "prompt_tokens": 20,
            "new_tokens": 11,
            "baseline_new_tokens": 11,
            "decode_seconds": [seconds, 1.1 * seconds],
            "baseline_decode_seconds": [1.5, 1.65],
            "accepted": kept,
            "tested": tested,
            "prompt_text": f"# {HOSTILE}\n" + "import this\n" * 20 * number,
            "tokens": TOKENS,
        }
        for number, kept in enumerate(accepted)
    ]


def sweep_records() -> list[Record]:
    """Points with long names, from different options, gamma policies and settings."""
    records = []
    for gamma in (1, 2, 3, 4, 8, 16):
        for options in ("", "smoothing=witten_bell order=5"):
            record = make_record("small_transformer", 1, 1.2, gamma=gamma, gamma_policy="expected_speedup")
            record.point["options"] = options
            records.append(record)
        for temperature in (0, 1):
            records.append(make_record("ngram", temperature, 2 - gamma / 8, gamma=gamma, tau=2 + gamma / 32))
        records.append(make_record("ngram", 1, 1.3, gamma=gamma, batch_size=32, **{"speedup/measured_high": 2.4}))
    return records


def full_records() -> list[Record]:
    """Three drafters at two temperatures, one of them lossy, and one drafter at several batch sizes."""
    records = [
        replace(make_record("ngram", 0, 1.64), prompts=prompts([30, 32])),
        replace(make_record("small_transformer", 0, 2.53), prompts=prompts([10, 12])),
        make_record("<i>typical</i>", 0, 0.9, guarantee="lossy", verifier="typical"),
        replace(make_record("ngram", 1, None), prompts=prompts([7, 7])),
        replace(make_record("small_transformer", 1, 1.42), prompts=prompts([20, 22])),
    ]
    for size, measured in ((2, 1.2), (4, 0.8)):
        records.append(make_record("small_transformer", 1, measured, batch_size=size))
    return records
