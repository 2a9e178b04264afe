#!/usr/bin/env bash
# langextract 1.7.1 (LangExtract), which lets a model extract facts from a text and maps each to its place in the
# text.
# Expected: its documentation says that what cannot be located in the text has `char_interval` None, so that `[e for e
#           in result.extractions if e.char_interval]` keeps only what is in the text: not what the model took from
#           the example of the prompt, nor what it made up.
# Seen:     a fact passes when its first words are anywhere in the text. "Juliet is the sun", from the documentation's
#           own example, is "located" at the word Juliet, "The patient has diabetes" in a text without diabetes at
#           "The patient", and "was sent to the ICU" at the word "was". Only `alignment_status` (`match_lesser`)
#           tells. "history of asthma", of which the text has no word, has None.
source "$(dirname "$0")/begin.sh"
# Its clients of Google's services are not needed here.
from_pypi absl-py==2.5.1 more-itertools==11.2.1 numpy==2.4.6 pandas==3.1.1 pydantic==2.14.4 pyyaml==6.0.4 \
    regex==2026.11.19 requests==2.34.2 tqdm==4.70.1
from_pypi --no-deps langextract==1.7.1
python - <<'PY'
import json
import warnings
from importlib.metadata import version

import langextract as lx
from langextract.core import base_model, types

warnings.simplefilter("ignore")


class Model(base_model.BaseLanguageModel):
    """Says what it is told to."""

    def __init__(self, facts):
        super().__init__()
        self.reply = json.dumps({"extractions": [{"fact": fact} for fact in facts]})

    def infer(self, batch_prompts, **options):
        for _ in batch_prompts:
            yield [types.ScoredOutput(score=1.0, output=self.reply)]


def located(text, facts, example, example_fact):
    """Return where each fact is found in the text, and how."""
    result = lx.extract(
        text_or_documents=text,
        prompt_description="Extract facts in order of appearance. Use exact text.",
        examples=[lx.data.ExampleData(text=example, extractions=[lx.data.Extraction("fact", example_fact)])],
        model=Model(facts),
        show_progress=False,
    )
    places = [fact.char_interval for fact in result.extractions]
    found = [place and text[place.start_pos : place.end_pos] for place in places]
    how = [fact.alignment_status and fact.alignment_status.value for fact in result.extractions]
    return dict(zip(facts, zip(found, how, strict=True), strict=True))


print("langextract", version("langextract"))
romeo = "But soft! What light through yonder window breaks? It is the east, and Juliet is the sun."
for text, example, example_fact, expected in (
    (
        "Lady Juliet gazed longingly at the stars, her heart aching for Romeo",
        romeo,
        "Juliet is the sun",
        {
            "Juliet is the sun": ("Juliet", "match_lesser"),
            "aching for Romeo": ("aching for Romeo", "match_exact"),
            "But soft!": (None, None),
        },
    ),
    (
        "The patient denies chest pain. No fever was noted.",
        "She has a cough.",
        "has a cough",
        {
            "The patient has diabetes": ("The patient", "match_lesser"),
            "denies chest pain": ("denies chest pain", "match_exact"),
            "was sent to the ICU": ("was", "match_lesser"),
            "history of asthma": (None, None),
        },
    ),
):
    seen = located(text, list(expected), example, example_fact)
    print(text)
    for fact, (place, how) in seen.items():
        print(f"    {fact!r} is located at {place!r} ({how})")
    assert seen == expected, "changed"
PY
