"""Train an EAGLE-3 head on the frozen target, on one CUDA device.

    python train_eagle3.py duo-tiny-q8_0.gguf data eagle3.npz --seconds 240

The head reads the inputs of three of the target's layers.  At a position it is given the token
there and what it read one position before, and says the next token; further guesses are made from
its own output.  Four guesses are unrolled in training as they are made in use: the keys and values
of earlier positions come from the target's rows, those of the chain from the head's own.

It learns the target's probabilities, on the conversations of pack.py.  The schedule follows the
wall clock, compilation included.
"""
import argparse, math, os, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F, gguf
from model import CONFIGS, HEAD, Llama, Norm, rope, rope_table

C = CONFIGS["target"]
D, LAYERS, GUESSES = C["dim"], (2, 5, 7), 4
DEV = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")


def target_of(path):
    """The target with the weights of a GGUF file."""
    w = {}
    for t in gguf.GGUFReader(path).tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        w[t.name] = torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type))).reshape(shape)
    m = Llama("target")
    m.load_state_dict({k: w[k] for k in m.state_dict()})
    return m.to(DEV).bfloat16().eval().requires_grad_(False)


class Head(nn.Module):
    """One layer whose attention sees the token's embedding beside the row; the residual is the row."""
    def __init__(self, target):
        super().__init__()
        lin = lambda i, o: nn.Linear(i, o, bias=False)
        h, kv = C["heads"], C["kv_heads"]
        self.fc = lin(len(LAYERS) * D, D)
        self.attn_norm, self.attn_norm_2, self.ffn_norm, self.output_norm = Norm(D), Norm(D), Norm(D), Norm(D)
        self.attn_q, self.attn_k, self.attn_v = lin(2 * D, h * HEAD), lin(2 * D, kv * HEAD), lin(2 * D, kv * HEAD)
        self.attn_output = lin(h * HEAD, D)
        self.ffn_gate, self.ffn_up, self.ffn_down = lin(D, C["ffn"]), lin(D, C["ffn"]), lin(C["ffn"], D)
        last = target.blk[-1]
        with torch.no_grad():                              # begins as the target's last layer, of the row alone
            nn.init.normal_(self.fc.weight, std=0.01)
            self.fc.weight[:, -D:] += torch.eye(D)
            self.attn_norm_2.weight.copy_(last.attn_norm.weight), self.output_norm.weight.copy_(target.output_norm.weight)
            for n in ("attn_q", "attn_k", "attn_v"):
                w = getattr(self, n).weight
                nn.init.normal_(w, std=0.02)
                w[:, D:] = getattr(last, n).weight
            for n in ("attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"):
                getattr(self, n).weight.copy_(getattr(last, n).weight)

    def forward(self, e, x, at, cos, sin, before=None):
        """One row for each chain.  e: embeddings, x: rows, at: guesses before; before: keys and values of
        the chains' first positions, then of each guess."""
        B, R, _ = x.shape
        y = torch.cat((self.attn_norm(e), self.attn_norm_2(x)), -1)
        q, k, v = (f(y).view(B, R, -1, HEAD).transpose(1, 2) for f in (self.attn_q, self.attn_k, self.attn_v))
        q, k = (rope(a, cos[at : at + R], sin[at : at + R]).to(v.dtype) for a in (q, k))
        n = C["heads"] // C["kv_heads"]
        own = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        pairs = [*(before or ()), own]
        (k0, v0), chain = pairs[0], pairs[1:]
        s = q @ k0.mT / math.sqrt(HEAD)
        s = s.masked_fill(torch.ones(R, R, dtype=torch.bool, device=s.device).triu(1), float("-inf"))
        s = torch.cat((s, *((q * k).sum(-1, keepdim=True) / math.sqrt(HEAD) for k, _ in chain)), -1)
        p = s.float().softmax(-1).to(v0.dtype)
        o = p[..., :R] @ v0
        for i, (_, v) in enumerate(chain):
            o = o + p[..., R + i, None] * v
        x = x + self.attn_output(o.transpose(1, 2).reshape(B, R, -1))
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y)), own


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("target"), ap.add_argument("data"), ap.add_argument("out")
    ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--rows", type=int, default=32), ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--lr", type=float, default=0.02), ap.add_argument("--adam-lr", type=float, default=1e-3)
    a = ap.parse_args()
    torch.manual_seed(0)
    from train import Muon
    begin = time.time()
    target = target_of(a.target)
    head = Head(target).to(DEV)
    print("head", sum(p.numel() for p in head.parameters()) / 1e6, "M parameters", flush=True)
    bins = {s: torch.from_numpy(np.fromfile(f"{a.data}/chats.{s}.bin", np.int16)).to(DEV) for s in ("train", "val")}
    idx = {s: torch.from_numpy(np.fromfile(f"{a.data}/chats.{s}.idx", np.int32)).to(DEV).long() for s in ("train", "val")}
    R = a.seq - GUESSES                                    # chains of a row of tokens
    cos, sin = rope_table(a.seq, DEV)
    compiled = torch.compile if DEV == "cuda" else lambda f, **_: f

    def batch(split, g):
        data, starts = bins[split], idx[split]
        starts = starts[starts < len(data) - a.seq]
        at = starts[torch.randint(0, len(starts), (a.rows,), device=DEV, generator=g)]
        w = data[at[:, None] + torch.arange(a.seq, device=DEV)]
        return (w & 0x7FFF).long(), (w < 0).float()

    @compiled
    def trunk(ids):
        x = e = target.token_embd(ids)
        seen = []
        for i, b in enumerate(target.blk):
            if i in LAYERS:
                seen.append(x)
            x = b(x, cos, sin)
        return e, torch.cat(seen, -1), F.linear(target.output_norm(x), target.token_embd.weight)

    @compiled
    def judged(x, t, w):
        """Loss against the target's logits, and where both choose alike."""
        lg = F.linear(head.output_norm(x), target.token_embd.weight.to(x.dtype)).float()
        lp, tp = F.log_softmax(lg, -1), F.log_softmax(t.float(), -1)
        top = t.argmax(-1)
        kl = (tp.exp() * (tp - lp)).sum(-1)
        hard = -lp.gather(-1, top[..., None])[..., 0]
        return ((0.7 * kl + 0.3 * hard) * w).sum() / w.sum(), lg.argmax(-1) == top

    layer = compiled(head)

    def unrolled(ids, w):
        """Loss, weights and agreement for each depth.  A chain that starts at row r is given token r + 1 and
        what was read at r."""
        with torch.no_grad(), torch.autocast(DEV, torch.bfloat16):
            e, seen, t = trunk(ids)
        loss, before, found = 0.0, [], []
        with torch.autocast(DEV, torch.bfloat16):
            x = head.fc(seen[:, :R])
            for k in range(GUESSES):
                x, own = layer(e[:, k + 1 : k + 1 + R], x, k, cos, sin, tuple(before) or None)
                before.append(own)
                weight = w[:, k + 2 : k + 2 + R]
                weight = F.pad(weight, (0, R - weight.shape[1]))
                part, same = judged(x, t[:, k + 1 : k + 1 + R], weight)
                loss = loss + 0.9 ** k * part
                found.append((same, weight))
        return loss, found

    hidden = [p for p in head.parameters() if p.dim() == 2]
    rest = [p for p in head.parameters() if p.dim() != 2]
    opts = [Muon(hidden, a.lr), torch.optim.AdamW(rest, lr=a.adam_lr, weight_decay=0.0)]
    g = torch.Generator(DEV).manual_seed(1)
    step, n_tok, log_at, started = 0, 0, 0.0, None
    while True:
        now = time.time()
        p = 0 if started is None else (now - started) / max(1, a.seconds - (started - begin))
        if p >= 1:
            break
        lr = min(1, (step + 1) / 50) * (1 if p < 0.4 else max(0.02, (1 - p) / 0.6))
        for o, base in zip(opts, (a.lr, a.adam_lr)):
            for group in o.param_groups:
                group["lr"] = base * lr
        ids, w = batch("train", g)
        loss, found = unrolled(ids, w)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for o in opts:
            o.step()
        head.zero_grad(set_to_none=True)
        step += 1
        n_tok += ids.numel()
        value = loss.item()
        if started is None and step == 5:
            started = time.time()
            print(f"compiled after {started - begin:.0f} s", flush=True)
        if time.time() - begin > log_at:
            agree = [round(((s * v).sum() / v.sum()).item(), 3) for s, v in found]
            print(f"{time.time() - begin:5.0f}s step {step} lr {lr:.2f} loss {value:.4f} agree {agree} {n_tok / 1e6:.1f}M", flush=True)
            log_at = time.time() - begin + 15
    np.savez(a.out, **{k: v.half().cpu().numpy() for k, v in head.state_dict().items()})
    g = torch.Generator(DEV).manual_seed(2)
    each, chain, total = *torch.zeros(2, GUESSES, dtype=torch.double), 0.0
    with torch.no_grad():
        for _ in range(max(1, 256 // a.rows)):
            ids, w = batch("val", g)
            _, found = unrolled(ids, w)
            weight = found[0][1].clone()
            for _, v in found:
                weight = weight * v                        # chains whose tokens are all the assistant's
            right = torch.ones_like(weight)
            for k, (same, _) in enumerate(found):
                right = right * same
                each[k] += (same * weight).sum().item()
                chain[k] += (right * weight).sum().item()
            total += weight.sum().item()
    before = torch.cat((torch.tensor([total], dtype=torch.double), chain[:-1]))
    print(f"{step} steps, {n_tok / 1e6:.0f}M tokens; validation, by depth: teacher-forced {(each / total).numpy().round(4).tolist()}, "
          f"first k all right {(chain / total).numpy().round(4).tolist()}, the next given those before {(chain / before).numpy().round(4).tolist()}", flush=True)


if __name__ == "__main__":
    main()
