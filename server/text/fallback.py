"""Chat templates for models that have none, chosen by the control tokens in the vocabulary. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else 'user') + '\\n' }}"
    "{{ (message['content'] or '') | trim + '<end_of_turn>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{ (message['content'] or '') | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_PHI = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + (message['content'] or '') + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
_WORDS = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['role'] | capitalize + ': ' + (message['content'] or '') | trim + '\\n\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Fallback:
    """A chat template, and the control tokens that it needs."""

    name: str
    source: str  # template in Jinja
    markers: tuple[str, ...] = ()  # control tokens that it writes; the last one ends a turn
    stops: tuple[str, ...] = ()  # texts that end a reply if no control token does


FALLBACKS = (
    Fallback("ChatML", CHATML, ("<|im_start|>", "<|im_end|>")),
    Fallback("Llama's headers", _LLAMA3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    Fallback("Gemma's turns", _GEMMA, ("<start_of_turn>", "<end_of_turn>")),
    Fallback("Phi's turns", _PHI, ("<|user|>", "<|assistant|>", "<|end|>")),
)
IN_WORDS = Fallback("User: and Assistant:", _WORDS, stops=("\n\nUser:", "\n\nSystem:"))


def fallback_for(added: Mapping[str, int]) -> Fallback:
    """Return the first template whose control tokens the vocabulary has, IN_WORDS if there is none.

    Args:
        added: Ids of the vocabulary's control tokens, by text.
    """
    return next((one for one in FALLBACKS if all(marker in added for marker in one.markers)), IN_WORDS)
