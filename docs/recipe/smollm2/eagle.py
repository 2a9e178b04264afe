"""Train an EAGLE-3 head on the frozen target, on one CUDA device; after docs/recipe/train_eagle3.py, with a
reduced vocabulary of its own.

    python eagle.py TARGET.gguf OUT --data chats --seconds 240
"""
import argparse, math, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
import kernels as k
from data import Data
from distil import Muon, parts
from smol import HEAD, TARGET as C, V, Teacher, norm, rope, rope_table

LAYERS, GUESSES, D = (2, 15, 29), 4, C["dim"]
torch.set_float32_matmul_precision("high")


class Judge(torch.autograd.Function):
    """Loss against the target's probabilities over the head's vocabulary; parts as in distil.py."""
    @staticmethod
    def forward(ctx, h, E, P, w, same):
        Eb = E.bfloat16()
        S = h @ Eb.T
        loss, agree = k.kl_(S, P, (w / w.sum()).contiguous(), 0.7)
        same.append(agree)
        ctx.save_for_backward(S @ Eb, S.T @ h)
        return loss.sum()

    @staticmethod
    def backward(ctx, go):
        dH, dE = ctx.saved_tensors
        return dH * go.to(dH.dtype), dE.float() * go, None, None, None


class Head(nn.Module):
    """One layer whose attention sees the token's embedding beside the row; the residual is the row."""
    def __init__(self, raw, out):
        super().__init__()
        h, kv, f = C["heads"], C["kv"], C["ffn"]
        one = lambda a: nn.Parameter(a.clone().float())
        last = lambda n: raw[f"blk.29.{n}.weight"]
        self.fc = nn.Parameter(torch.randn(D, 3 * D) * 0.005)
        for n, rows in (("attn_q", h * HEAD), ("attn_k", kv * HEAD), ("attn_v", kv * HEAD)):
            w = torch.randn(rows, 2 * D) * 0.02
            w[:, D:] = last(n)
            setattr(self, n, nn.Parameter(w))
        for n in ("attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_norm"):
            setattr(self, n, one(last(n)))
        self.attn_norm, self.attn_norm_2 = nn.Parameter(torch.ones(D)), one(last("attn_norm"))
        self.output_norm, self.output = one(raw["output_norm.weight"]), one(out)
        with torch.no_grad():
            self.fc[:, -D:] += torch.eye(D)


def head_layer(e, x, q, kk, v, o, g, u, d, n1, n2, n3, cos, sin, before):
    B, R, _ = x.shape
    half = torch.bfloat16
    y = torch.cat((norm(e, n1), norm(x, n2)), -1).to(half)
    q, kk, v = (F.linear(y, a.to(half)).view(B, R, -1, HEAD).transpose(1, 2) for a in (q, kk, v))
    q, kk = rope(q, cos, sin).to(half), rope(kk, cos, sin).to(half)
    n = C["heads"] // C["kv"]
    own = kk.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    pairs = [*before, own]
    (k0, v0), chain = pairs[0], pairs[1:]
    s = q @ k0.mT / math.sqrt(HEAD)
    s = s.masked_fill(torch.ones(R, R, dtype=torch.bool, device=s.device).triu(1), float("-inf"))
    s = torch.cat((s, *((q * a).sum(-1, keepdim=True) / math.sqrt(HEAD) for a, _ in chain)), -1)
    p = s.float().softmax(-1).to(half)
    y = p[..., :R] @ v0
    for i, (_, a) in enumerate(chain):
        y = y + p[..., R + i, None] * a
    x = x + F.linear(y.transpose(1, 2).reshape(B, R, -1), o.to(half)).float()
    y = norm(x, n3).to(half)
    return x + F.linear(F.silu(F.linear(y, g.to(half))) * F.linear(y, u.to(half)), d.to(half)).float(), own


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("target"), ap.add_argument("out")
    ap.add_argument("--data", nargs="+", required=True), ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--rows", type=int, default=32), ap.add_argument("--seq", type=int, default=512), ap.add_argument("--vocab", type=int, default=12288)
    ap.add_argument("--lr", type=float, default=0.01), ap.add_argument("--adam-lr", type=float, default=5e-4)
    ap.add_argument("--long", type=float, default=0.7, help="share of the time after which rows are four times as long")
    ap.add_argument("--device", default="cuda"), ap.add_argument("--steps", type=int, default=0)
    a = ap.parse_args()
    dev, cuda, begin = a.device, a.device == "cuda", time.time()
    torch.manual_seed(0)
    data = Data(a.data, dev)
    target = Teacher(a.target, dev, torch.float16 if cuda else torch.float32)
    raw, target.raw = target.raw, None
    if cuda:
        from smol import teacher_block
        target.block = torch.compile(teacher_block, dynamic=False)
    counts = torch.bincount(data.tok[data.mark == 1].long(), minlength=V)
    counts[:17] += 1 << 40                                 # special tokens belong to it
    d2t = counts.topk(a.vocab).indices.sort().values
    print(f"{a.vocab} tokens are {counts[d2t][17:].sum().item() / counts[17:].sum().item():.4f} of the assistant's", flush=True)
    small = target.embd[d2t].contiguous()
    head = Head(raw, raw["token_embd.weight"].to(dev)[d2t]).to(dev)
    print("head", sum(p.numel() for p in head.parameters()) / 1e6, "M parameters", flush=True)
    cos, sin = rope_table(a.seq * 4, dev)
    layer = torch.compile(head_layer, dynamic=False) if cuda else head_layer

    def batch(split, g, longer=False):
        rows, seq = (a.rows // 4, a.seq * 4) if longer else (a.rows, a.seq)
        x, y, w = data.rows(split, rows, seq - 1, g)
        return torch.cat((x, y[:, -1:]), 1), F.pad(w, (1, 0))

    def unrolled(ids, w, judge):
        R = ids.shape[1] - GUESSES
        with torch.no_grad():
            h, seen = target.hidden(ids, LAYERS)
            e = F.embedding(ids, target.embd).float()
            wide = torch.cat(seen, -1)[:, :R].bfloat16()
        loss, before, found = 0.0, [], []
        x = F.linear(wide, head.fc.bfloat16()).float()
        for i in range(GUESSES):
            x, own = layer(e[:, i + 1 : i + 1 + R], x, head.attn_q, head.attn_k, head.attn_v, head.attn_output, head.ffn_gate, head.ffn_up,
                           head.ffn_down, head.attn_norm, head.attn_norm_2, head.ffn_norm, cos[i : i + R], sin[i : i + R], tuple(before))
            before.append(own)
            weight = w[:, i + 2 : i + 2 + R]
            weight = F.pad(weight, (0, R - weight.shape[1]))
            y = norm(x, head.output_norm).bfloat16()
            part = judge(y, h[:, i + 1 : i + 1 + R], weight, found)
            loss = loss + 0.9 ** i * part
        return loss, found

    def learn(y, h, weight, found):
        j = (weight.flatten() > 0).nonzero()[:, 0]
        ww, same = weight.flatten()[j], []
        part = Judge.apply(y.flatten(0, 1)[j], head.output, h.flatten(0, 1)[j] @ small.T, ww, same)
        found.append((same[0] * ww).sum() / ww.sum())
        return part

    def look(y, h, weight, found):
        best = d2t[(y.flatten(0, 1) @ head.output.bfloat16().T).argmax(-1)]
        top = torch.cat([(p @ target.embd.T).argmax(-1) for p in h.flatten(0, 1).split(8192)])
        found.append(((best == top).float().view_as(weight), (weight == 1).float()))
        return 0.0

    hidden = [p for n, p in head.named_parameters() if p.dim() == 2 and n != "output"]
    rest = [p for n, p in head.named_parameters() if p.dim() != 2 or n == "output"]
    opts = [Muon(hidden, a.lr), torch.optim.AdamW(rest, lr=a.adam_lr, weight_decay=0.0)]
    g = torch.Generator(dev).manual_seed(1)
    step, n_tok, log_at, started = 0, 0, 0.0, None
    while not a.steps or step < a.steps:
        now = time.time()
        p = 0 if started is None else (now - started) / max(1, a.seconds - (started - begin))
        if p >= 1:
            break
        lr = min(1, (step + 1) / 50) * (1 if p < 0.4 else max(0.02, (1 - p) / 0.6))
        for o, base in zip(opts, (a.lr, a.adam_lr)):
            for group in o.param_groups:
                group["lr"] = base * lr
        ids, w = batch("train", g, p > a.long)
        loss, found = unrolled(ids, w, learn)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for o in opts:
            o.step()
        head.zero_grad(set_to_none=True)
        step += 1
        n_tok += ids.numel()
        if started is None and step == 5:
            torch.cuda.synchronize() if cuda else None
            started = time.time()
            print(f"compiled after {started - begin:.0f} s", flush=True)
        if time.time() - begin > log_at:
            print(f"{time.time() - begin:5.0f}s step {step} lr {lr:.2f} loss {loss.item():.4f} agree {[round(f.item(), 3) for f in found]} {n_tok / 1e6:.1f}M", flush=True)
            log_at = time.time() - begin + 15
        if step % 4 == 0 and cuda:
            torch.cuda.synchronize()
    out = {n + ".weight": p.detach().half().cpu().numpy() for n, p in head.named_parameters()}
    parts({**out, "d2t": d2t.cpu().numpy().astype(np.int64)}, a.out, None)
    g = torch.Generator(dev).manual_seed(2)
    each, chain, total = *torch.zeros(2, GUESSES, dtype=torch.double), 0.0
    with torch.no_grad():
        for _ in range(max(1, 256 // a.rows) if cuda else 1):
            ids, w = batch("val", g)
            _, found = unrolled(ids, w, look)
            weight = found[0][1].clone()
            for _, v in found:
                weight = weight * v
            right = torch.ones_like(weight)
            for i, (same, _) in enumerate(found):
                right = right * same
                each[i] += (same * weight).sum().item()
                chain[i] += (right * weight).sum().item()
            total += weight.sum().item()
    before = torch.cat((torch.tensor([total], dtype=torch.double), chain[:-1]))
    print(f"{step} steps, {n_tok / 1e6:.0f}M tokens; held out, by depth: teacher-forced {(each / total).numpy().round(4).tolist()}, "
          f"first k all right {(chain / total).numpy().round(4).tolist()}, the next given those before {(chain / before).numpy().round(4).tolist()}; {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
