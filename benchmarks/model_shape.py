"""Shapes of models of the architecture llama, and a choice of one by number of parameters. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from fractions import Fraction

from server.errors import StartupError

WIDTH_STEP = 32  # channels: Q8_0 has blocks of 32
MOST_LAYERS = 48  # of a chosen shape: beyond, real models are wider instead


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model of the architecture llama."""

    n_layers: int
    n_embd: int  # channels of the residual stream
    n_heads: int
    n_kv_heads: int
    n_ffn: int  # channels of a feed-forward layer
    n_vocab: int
    head_size: int = 0  # channels of a head where that is not n_embd / n_heads, else 0
    n_blocks: int = 0  # prediction blocks (MTP) behind the layers

    @property
    def head_dim(self) -> int:
        return self.head_size or self.n_embd // self.n_heads

    @property
    def n_q(self) -> int:
        """Channels of all query heads."""
        return self.n_heads * self.head_dim

    @property
    def n_kv(self) -> int:
        """Channels of all key heads, or of all value heads."""
        return self.n_kv_heads * self.head_dim

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def layer_params(self) -> int:
        """Weights of one layer's matrices."""
        attention = 2 * self.n_embd * (self.n_q + self.n_kv)
        return attention + 3 * self.n_embd * self.n_ffn

    @property
    def n_params(self) -> int:
        """Weights of all matrices; the embedding counts once, since it is the unembedding too."""
        return self.n_vocab * self.n_embd + self.n_layers * self.layer_params

    def widened(self, factor: int | Fraction, n_layers: int) -> Shape:
        """Return a shape of n_layers layers with every width times `factor`.

        It has more heads of this size and grouping; other widths become multiples of WIDTH_STEP.
        """
        return self.enlarged(
            n_layers=n_layers,
            n_embd=_whole(factor * self.n_embd),
            n_heads=round(factor * self.n_heads),
            n_kv_heads=round(factor * self.n_kv_heads),
            n_ffn=_whole(factor * self.n_ffn),
        )

    def enlarged(self, **sizes: int) -> Shape:
        """Return the shape with these fields replaced; heads keep their size."""
        large = replace(self, **sizes)
        head_size = 0 if large.n_heads * self.head_dim == large.n_embd else self.head_dim
        return replace(large, head_size=head_size)

    def misfit(self, large: Shape) -> str | None:
        """Return why this shape cannot be inflated to `large`, None if it can."""
        for name in ("n_layers", "n_embd", "n_heads", "n_kv_heads", "n_ffn"):
            if getattr(large, name) < getattr(self, name):
                return f"{name} {getattr(large, name)} is less than the model's {getattr(self, name)}"
        if large.head_dim != self.head_dim or large.n_vocab != self.n_vocab:
            return "the size of the heads and the vocabulary must stay"
        if large.n_heads % large.n_kv_heads or large.group < self.group:
            return f"each key-value head must serve at least {self.group} heads, and all as many"
        return None


def choose(small: Shape, n_params: int) -> Shape:
    """Return the narrowest shape of at most MOST_LAYERS layers that has about this many parameters.

    Try whole multiples of the model's width first, then every number of key-value heads.

    Raises:
        StartupError: The model is already larger.
    """
    for step in (small.n_kv_heads, 1):
        for n_kv_heads in itertools.count(small.n_kv_heads, step):
            one = small.widened(Fraction(n_kv_heads, small.n_kv_heads), 1)
            n_layers = round((n_params - small.n_vocab * one.n_embd) / one.layer_params)
            if n_layers < small.n_layers:
                break
            if n_layers <= max(MOST_LAYERS, small.n_layers):
                return replace(one, n_layers=n_layers)
    raise StartupError(f"the model has {small.n_params:,} parameters: wanted {n_params:,}")


def _whole(width: int | Fraction) -> int:
    """Round a fraction up to a multiple of WIDTH_STEP; return an int as it is."""
    return width if isinstance(width, int) else -(-width // WIDTH_STEP) * WIDTH_STEP


def parse_count(text: str) -> int:
    """Parse a count with or without K, M or B: "400M" is 400,000,000. Raises ValueError."""
    factors = {"K": 10**3, "M": 10**6, "B": 10**9}
    factor = factors.get(text[-1:].upper(), 1)
    n = round(float(text[:-1] if factor > 1 else text) * factor)
    if n <= 0:
        raise ValueError(f"a number of parameters, not {text!r}")
    return n


def describe(shape: Shape, kind: str) -> str:
    """Return one line that describes a shape and type."""
    heads = f"{shape.n_heads} heads and {shape.n_kv_heads} key-value heads of {shape.head_dim}"
    layers = f"{shape.n_layers} layers of width {shape.n_embd}, FFN {shape.n_ffn}"
    return f"{shape.n_params / 1e6:,.1f}M parameters as {kind}: {layers}, {heads}"
