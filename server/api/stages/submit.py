"""Run the stages for a validated request, and submit the resulting requests to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.api.adapters import check_scales
from server.api.body import joined
from server.api.chat.chat_request import ChatRequest
from server.api.choices import ReplyChoice
from server.api.completions.completion_request import CompletionRequest
from server.api.generation_fields import GenerationFields, Speculative
from server.api.generation_settings import slot_params_json
from server.api.sampling_fields import sampling_params, stop_tokens
from server.api.services import Services
from server.api.stages.constrain import constrained
from server.api.stages.prompted import Prompted
from server.api.stages.render import rendered
from server.api.stages.tokenize import tokenized, tokenized_texts
from server.engine.request import GenerationRequest, Speculation
from server.errors import FieldError
from server.llama.backend import Vocabulary
from server.sampling.noise import mix
from server.sampling.params import SamplingParams
from server.text.room import Room


def prepared_chat(services: Services, body: ChatRequest) -> Prompted:
    """Return the prompt of a chat, ready to be submitted. Slow: not for the event loop.

    Raises:
        InvalidRequestError: The request cannot be served. A prompt that is too long is refused before its
            grammar is compiled.
    """
    return prepared(services, body, tokenized(services, body, rendered(services, body)))


def prepared_texts(services: Services, body: CompletionRequest) -> list[Prompted]:
    """Return the prompts of a completion, ready to be submitted. Slow: not for the event loop.

    Raises:
        InvalidRequestError: The request cannot be served.
    """
    return [prepared(services, body, prompt) for prompt in tokenized_texts(services, body)]


def prepared(services: Services, body: GenerationFields, prompt: Prompted) -> Prompted:
    """Return a tokenised prompt with its constraint and requests added. Slow: not for the event loop.

    Raises:
        InvalidRequestError: A field cannot be honoured.
    """
    return requested(services, body, constrained(services, body, prompt))


def submit(services: Services, body: GenerationFields, prompts: Sequence[Prompted]) -> list[ReplyChoice]:
    """Submit the requests of all prompts to the engine, and return a choice for each request, in order.

    If the generator refuses a request, cancel the earlier ones and raise its error.
    """
    choices: list[ReplyChoice] = []
    try:
        for prompt in prompts:
            for request in prompt.requests:
                generation = services.generator.submit(request)
                at, vocabulary = len(choices), services.vocabulary
                choices.append(
                    ReplyChoice(at, generation, vocabulary, body, prompt.form, begins=prompt.begins)
                )
    except BaseException:
        for choice in choices:
            choice.generation.cancel()
        raise
    return choices


def requested(services: Services, body: GenerationFields, prompt: Prompted) -> Prompted:
    """Return the prompt with a request to the engine for each of the body's n_generated replies.

    Raises:
        InvalidRequestError: A field cannot be honoured.
    """
    if body.lora:
        check_scales(services, body.lora, "lora")
    pictures = services.spans(prompt.tokens)
    shifts = _wants_shift(services, body) and not pictures
    if pictures and body.context_shift:
        raise FieldError("context_shift", "not with pictures or sounds, which cannot be dropped in part")
    first = GenerationRequest(
        prompt=prompt.tokens,
        sampling=_sampling_of(services, body),
        max_tokens=body.max_new_tokens or services.max_tokens,
        stop_tokens=services.vocabulary.eog | stop_tokens(body, services.vocabulary),
        speculation=_speculation_of(body, services.vocabulary, services.room),
        constraint=prompt.constraint,
        n_logprobs=body.n_logprobs,
        n_keep=_n_keep(body, len(prompt.tokens), services.vocabulary) if shifts else None,
        n_beams=max(1, body.n_beams),
        salt=body.salt,
        slot=body.id_slot if body.id_slot >= 0 else None,
        reuse=body.cache_prompt and not body.reports_prompt,
        prompt_logprobs=body.reports_prompt,
        drawn_from=body.post_sampling_probs,
        progress=body.stream and body.return_progress,
        pictures=pictures,
        request_fields=slot_params_json(body, body.max_new_tokens or services.max_tokens or -1),
    )
    if body.n_generated > body.n and first.n_logprobs is None:
        first = replace(first, n_logprobs=0)  # the best replies are chosen by their logprobs
    sampling = first.sampling
    requests = [
        replace(
            first,
            sampling=sampling.reseeded(seed_of_choice(sampling.seed, c)),
            mus=[] if sampling.mirostat else None,
        )
        for c in range(body.n_generated)
    ]
    return replace(prompt, requests=requests)


def _sampling_of(services: Services, body: GenerationFields) -> SamplingParams:
    params = sampling_params(body, services.defaults, services.vocabulary)
    return params if services.seed is None or body.seed is not None else params.reseeded(services.seed)


def seed_of_choice(seed: int, choice: int) -> int:
    """Return the seed of a choice, given its index. Choice 0 has the request's seed, as if n were 1."""
    return mix(seed ^ mix(choice)) if choice else seed


def _speculation_of(body: GenerationFields, vocabulary: Vocabulary, room: Room) -> Speculation:
    """Return the request's limits on drafts, and its prediction as tokens, cut to the context's length."""
    asked = body.speculative
    prediction: tuple[int, ...] = ()
    if body.prediction is not None:
        expected = joined(body.prediction.content)[: room.n_ctx * room.longest]
        prediction = tuple(vocabulary.tokenize(expected, special=False)[: room.n_ctx])
    if not isinstance(asked, Speculative):
        return Speculation(n_max=0 if asked is False else None, prediction=prediction)
    drafters = None if asked.drafters is None else frozenset(asked.drafters)
    return Speculation(**asked.model_dump(exclude={"drafters"}), drafters=drafters, prediction=prediction)


def _wants_shift(services: Services, body: GenerationFields) -> bool:
    return (services.context_shift and body.n_beams < 2) if body.context_shift is None else body.context_shift


def _n_keep(body: GenerationFields, n_prompt: int, vocabulary: Vocabulary) -> int:
    """Return how many tokens at the beginning of the prompt a context shift keeps.

    A negative n_keep keeps all n_prompt tokens. Else BOS is kept in addition, as in llama-server.
    """
    return n_prompt if body.n_keep < 0 else body.n_keep + vocabulary.add_bos
