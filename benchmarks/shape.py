"""The shape of a llama-architecture model, its cost, and which larger one has a wanted cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

MOST_LAYERS = 48  # of a chosen shape: beyond, real models are wider instead


@dataclass(frozen=True, slots=True)
class Shape:
    """`n_embd` residual channels, `n_ffn` channels of the feed-forward layer. head_size: channels of a head
    where that is not n_embd / n_heads, else 0."""

    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    n_ffn: int
    n_vocab: int
    head_size: int = 0

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
        """Weights of all matrices; the embedding counts once, being the unembedding too."""
        return self.n_vocab * self.n_embd + self.n_layers * self.layer_params

    def widened(self, factor: int, n_layers: int) -> Shape:
        """Every width times `factor`, with more heads of this size and grouping, and n_layers layers."""
        return replace(
            self,
            n_layers=n_layers,
            n_embd=factor * self.n_embd,
            n_heads=factor * self.n_heads,
            n_kv_heads=factor * self.n_kv_heads,
            n_ffn=factor * self.n_ffn,
        )

    def enlarged(self, **sizes: int) -> Shape:
        """With these fields replaced; heads keep their size. Raises ValueError if the result cannot hold
        this shape."""
        large = replace(self, **sizes)
        head_size = 0 if large.n_heads * self.head_dim == large.n_embd else self.head_dim
        large = replace(large, head_size=head_size)
        if problem := self.misfit(large):
            raise ValueError(problem)
        return large

    def misfit(self, large: Shape) -> str | None:
        """Why a model of this shape cannot be inflated to that one, or None when it can."""
        for name in ("n_layers", "n_embd", "n_heads", "n_kv_heads", "n_ffn"):
            if getattr(large, name) < getattr(self, name):
                return f"{name} {getattr(large, name)} is less than the model's {getattr(self, name)}"
        if large.head_dim != self.head_dim or large.n_vocab != self.n_vocab:
            return "the size of the heads and the vocabulary must stay"
        if large.n_heads % large.n_kv_heads or large.group < self.group:
            return f"each key-value head must serve at least {self.group} heads, and all as many"
        return None


def choose(small: Shape, n_params: int) -> Shape:
    """The narrowest shape of at most MOST_LAYERS layers that has about `n_params`. Raises ValueError when
    `small` is larger already."""
    factor = 1
    while True:
        one = small.widened(factor, 1)
        n_layers = round((n_params - small.n_vocab * one.n_embd) / one.layer_params)
        if n_layers < small.n_layers:
            raise ValueError(f"the model has {small.n_params:,} parameters: wanted {n_params:,}")
        if n_layers <= max(MOST_LAYERS, small.n_layers):
            return small.widened(factor, n_layers)
        factor += 1


def parse_count(text: str) -> int:
    """ "400M" is 400,000,000; K, M and B are understood. Raises ValueError."""
    factors = {"K": 10**3, "M": 10**6, "B": 10**9}
    factor = factors.get(text[-1:].upper(), 1)
    n = round(float(text[:-1] if factor > 1 else text) * factor)
    if n <= 0:
        raise ValueError(f"a number of parameters, not {text!r}")
    return n
