"""Write questions with given options for the model, and read answers from its logprobs. Pure."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

MOST_OPTIONS = 255
"""Maximum options of a question, as in OpenAI's API."""
BEGUN = "Answer:"
"""Beginning of the reply, which the model continues with a label."""


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its possible answers; without options the answer is yes or no."""

    instructions: str
    options: Sequence[Option] = ()
    ordered: bool = False  # True: the options are levels, the lowest first

    @property
    def labels(self) -> list[str]:
        """Return the label of each option; no label begins with another one.

        Labels are A to Z, or AA to ZZ if there are more options; without options they are Yes and No.
        """
        if not self.options:
            return ["Yes", "No"]
        letters = string.ascii_uppercase
        n_letters = 1 if len(self.options) <= len(letters) else 2
        return list(islice(map("".join, product(letters, repeat=n_letters)), len(self.options)))

    @property
    def text(self) -> str:
        """Return the question as the model reads it."""
        if not self.options:
            return f"{self.instructions}\n\nIs that so? Answer with Yes or No only."
        listed = "\n".join(
            f"{label}: {option.name}" + (f" ({option.description})" if option.description else "")
            for label, option in zip(self.labels, self.options, strict=True)
        )
        order = ", which are levels from the lowest to the highest" if self.ordered else ""
        return f"{self.instructions}\n\nThe possible answers{order}:\n{listed}\n\nAnswer with one label only."


def shares(logprobs: Sequence[float]) -> list[float]:
    """Convert logprobs to probabilities, and scale these to sum to 1."""
    weights = np.exp(np.asarray(logprobs) - max(logprobs))
    return [float(share) for share in weights / weights.sum()]


def confidence(probabilities: Sequence[float]) -> float:
    """Return the confidence in the likeliest option: 0 if all are equally likely, 1 if it is certain."""
    if len(probabilities) < 2:
        return 1.0
    uniform = 1 / len(probabilities)
    return max(0.0, (max(probabilities) - uniform) / (1 - uniform))


def confidence_of_levels(probabilities: Sequence[float]) -> float:
    """Return the confidence in the likeliest level, from 0 to 1: max(0, 1 - distance / spread).

    distance: Expected distance from the likeliest level to the right one, in levels.
    spread: Mean distance of all levels from the middle of the scale.
    """
    if len(probabilities) < 2:
        return 1.0
    places = np.arange(len(probabilities))
    distance = np.abs(places - int(np.argmax(probabilities))) @ np.asarray(probabilities)
    spread = np.abs(places - places.mean()).mean()
    return max(0.0, float(1 - distance / spread))


def expected_level(probabilities: Sequence[float]) -> float:
    """Return the expected level, counted from 0, given the levels' probabilities."""
    return float(np.arange(len(probabilities)) @ np.asarray(probabilities))
