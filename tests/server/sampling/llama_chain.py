"""llama.cpp's own samplers over a row of logits, as the thing to compare with."""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as _untyped
import numpy as np

from server.sampling.draw import Distribution, Row
from server.sampling.params import SamplingParams

C: Any = _untyped  # ctypes bindings: their types are in the C header, not in Python


def survivors(
    row: Row, params: SamplingParams, history: Sequence[int], vocabulary: Any = None
) -> Distribution:
    """Return what llama.cpp draws from: the candidates that its chain leaves, with their softmax.

    vocabulary: its own, for infill.
    """
    n = len(row)
    data = (C.llama_token_data * n)(*((i, float(row[i]), 0.0) for i in range(n)))
    candidates = C.llama_token_data_array(ctypes.cast(data, C.llama_token_data_p), n, -1, False)
    bias = (C.llama_logit_bias * len(params.logit_bias))(*params.logit_bias)
    with _owned(
        [C.llama_sampler_init_logit_bias(n, len(bias), bias), *_chain(params, n, vocabulary)]
    ) as samplers:
        for sampler in samplers:
            for token in history:
                C.llama_sampler_accept(sampler, token)
            C.llama_sampler_apply(sampler, ctypes.byref(candidates))
        left = [(candidates.data[i].id, candidates.data[i].logit) for i in range(candidates.size)]
    left = sorted((token, logit) for token, logit in left if logit > -np.inf)
    weights = np.exp(np.array([logit for _, logit in left]) - max(logit for _, logit in left))
    return Distribution(np.array([token for token, _ in left], np.int64), weights / weights.sum())


def _chain(p: SamplingParams, n: int, vocabulary: Any) -> Iterator[Any]:
    if p.mirostat:
        yield C.llama_sampler_init_temp(p.temperature)
        tau, eta = p.mirostat_tau, p.mirostat_eta
        if p.mirostat == 1:
            yield C.llama_sampler_init_mirostat(n, 1, tau, eta, 100)
        else:
            yield C.llama_sampler_init_mirostat_v2(1, tau, eta)
        return
    penalties = (p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
    temperature = (p.temperature, p.dynatemp_range, p.dynatemp_exponent)
    dry = (p.dry_multiplier, p.dry_base, p.dry_allowed_length, _window(p.dry_penalty_last_n))
    make = {
        "penalties": lambda: C.llama_sampler_init_penalties(n, _window(p.repeat_last_n), *penalties),
        "dry": lambda: C.llama_sampler_init_dry(None, *dry, None, 0),
        "top_n_sigma": lambda: C.llama_sampler_init_top_n_sigma(p.top_n_sigma),
        "top_k": lambda: C.llama_sampler_init_top_k(p.top_k),
        "typ_p": lambda: C.llama_sampler_init_typical(p.typical_p, 0),
        "top_p": lambda: C.llama_sampler_init_top_p(p.top_p, 0),
        "min_p": lambda: C.llama_sampler_init_min_p(p.min_p, 0),
        "xtc": lambda: C.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, 0, 1),
        "infill": lambda: C.llama_sampler_init_infill(vocabulary),
        "temperature": lambda: C.llama_sampler_init_temp_ext(*temperature),
    }
    for name in p.samplers:
        yield make[name]()


def _window(n: int) -> int:
    return 4096 if n < 0 else n


@contextmanager
def _owned(samplers: Sequence[Any]) -> Generator[Sequence[Any]]:
    try:
        yield samplers
    finally:
        for sampler in samplers:
            C.llama_sampler_free(sampler)
