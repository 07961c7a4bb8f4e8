"""A decoder-only transformer of GPT-2's shape, written out so that nothing but torch is needed."""

# mypy: disallow-subclassing-any=False

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class TransformerShape:
    """``sequence`` is the number of tokens of one sample, ``positions`` the number the model could take."""

    vocabulary: int
    positions: int
    sequence: int
    width: int
    layers: int
    heads: int

    def describe(self) -> str:
        """The shape in words."""
        return (
            f"decoder-only transformer, {self.layers} layers, width {self.width}, {self.heads} heads, "
            f"vocabulary {self.vocabulary}, tied output"
        )


# 124,439,808 parameters, as GPT-2 small. 256 tokens a sample keep a step on one GPU well below a second.
GPT2_SMALL = TransformerShape(50257, 1024, 256, 768, 12, 12)
# 3.7 million parameters: a step of some tens of milliseconds on one core.
TINY = TransformerShape(2048, 64, 32, 256, 4, 4)


class Block(nn.Module):
    """Pre-norm attention and MLP with residuals. Input and output: (batch, sequence, width)."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        batch, sequence, width = x.shape
        parts = self.attention_in(self.norm1(x)).view(batch, sequence, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (batch, heads, sequence, width / heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens (batch, sequence) to logits (batch · sequence, vocabulary). No dropout: every run is comparable."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.positions, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_initialise)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next token's logits at every place; the output weights are the embedding's."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight).flatten(0, 1)


def _initialise(module: nn.Module) -> None:
    """GPT-2's initialisation: normal with deviation 0.02, biases zero."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
