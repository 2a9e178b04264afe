"""The shape of a llama-architecture model, its cost, and which larger one has a wanted cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

MOST_LAYERS = 48  # of a chosen shape: beyond, real models are wider instead


@dataclass(frozen=True, slots=True)
class Shape:
    """`n_embd` residual channels, `n_ffn` channels of the feed-forward layer."""

    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    n_ffn: int
    n_vocab: int

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_heads

    @property
    def n_kv(self) -> int:
        """Channels of all key heads, or of all value heads."""
        return self.n_kv_heads * self.head_dim

    @property
    def layer_params(self) -> int:
        """Weights of one layer's matrices."""
        attention = 2 * self.n_embd * (self.n_embd + self.n_kv)
        return attention + 3 * self.n_embd * self.n_ffn

    @property
    def n_params(self) -> int:
        """Weights of all matrices; the embedding counts once, being the unembedding too."""
        return self.n_vocab * self.n_embd + self.n_layers * self.layer_params

    def widened(self, factor: int, n_layers: int) -> Shape:
        """Every width times `factor`, more heads of the same size in the same grouping, `n_layers` layers."""
        return replace(
            self,
            n_layers=n_layers,
            n_embd=factor * self.n_embd,
            n_heads=factor * self.n_heads,
            n_kv_heads=factor * self.n_kv_heads,
            n_ffn=factor * self.n_ffn,
        )


def choose(small: Shape, n_params: int) -> Shape:
    """The narrowest shape of at most MOST_LAYERS layers that has about `n_params`. Raises ValueError when
    `small` is larger already."""
    factor = 1
    while True:
        one = small.widened(factor, 1)
        n_layers = round((n_params - small.n_vocab * one.n_embd) / one.layer_params)
        if n_layers < small.n_layers:
            raise ValueError(
                f"the model has {small.n_params:,} parameters and as many layers: wanted {n_params:,}"
            )
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
