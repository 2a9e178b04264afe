"""A Llama: RMSNorm, interleaved RoPE, grouped-query attention, SwiGLU, tied embeddings.

The rotary embedding turns neighbouring pairs (0,1), (2,3) ..., which is what llama.cpp
does for its architecture "llama", so that no rows need to be permuted on export.
"""

import torch, torch.nn as nn, torch.nn.functional as F

CONFIGS = {
    "target": dict(dim=512, layers=8, heads=8, kv_heads=4, ffn=1408, vocab=8192),
    "draft": dict(dim=256, layers=4, heads=4, kv_heads=2, ffn=640, vocab=8192),
}
THETA, EPS, HEAD = 10000.0, 1e-5, 64


def rope_table(n, device):
    f = THETA ** (-torch.arange(0, HEAD, 2, device=device).float() / HEAD)
    a = torch.outer(torch.arange(n, device=device).float(), f)
    return a.cos(), a.sin()


def rope(x, cos, sin):  # x: B, H, T, HEAD
    x = x.float().unflatten(-1, (-1, 2))
    a, b = x[..., 0], x[..., 1]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, EPS).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.h, self.kv = c["dim"], c["heads"], c["kv_heads"]
        self.attn_norm, self.ffn_norm = Norm(d), Norm(d)
        lin = lambda i, o: nn.Linear(i, o, bias=False)
        self.attn_q, self.attn_k, self.attn_v = (
            lin(d, self.h * HEAD),
            lin(d, self.kv * HEAD),
            lin(d, self.kv * HEAD),
        )
        self.attn_output = lin(self.h * HEAD, d)
        self.ffn_gate, self.ffn_up, self.ffn_down = lin(d, c["ffn"]), lin(d, c["ffn"]), lin(c["ffn"], d)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        y = self.attn_norm(x)
        q = self.attn_q(y).view(B, T, self.h, HEAD).transpose(1, 2)
        k = self.attn_k(y).view(B, T, self.kv, HEAD).transpose(1, 2)
        v = self.attn_v(y).view(B, T, self.kv, HEAD).transpose(1, 2)
        q, k = rope(q, cos, sin).to(v.dtype), rope(k, cos, sin).to(v.dtype)
        k, v = k.repeat_interleave(self.h // self.kv, 1), v.repeat_interleave(self.h // self.kv, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_output(y.transpose(1, 2).reshape(B, T, -1))
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Llama(nn.Module):
    def __init__(self, name):
        super().__init__()
        c = self.config = CONFIGS[name]
        self.token_embd = nn.Embedding(c["vocab"], c["dim"])
        self.blk = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.output_norm = Norm(c["dim"])
        for n, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02
                if n.endswith(("attn_output.weight", "ffn_down.weight")):
                    std /= (2 * c["layers"]) ** 0.5
                nn.init.normal_(p, std=std)

    def forward(self, ids):
        cos, sin = rope_table(ids.shape[1], ids.device)
        x = self.token_embd(ids)
        for b in self.blk:
            x = b(x, cos, sin)
        return F.linear(self.output_norm(x), self.token_embd.weight)
