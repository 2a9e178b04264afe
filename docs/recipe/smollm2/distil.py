"""Distil the draft model from the target, on one CUDA device.

    python distil.py TARGET.gguf OUT --data chats --seconds 400

The schedule follows the wall clock, compilation included.  Logits of both are made in parts, and a kernel turns
the draft's into the gradient of 0.7 KL + 0.3 cross-entropy of the target's best token.
"""
import argparse, os, time
import numpy as np, torch, torch.nn.functional as F
import kernels as k
from data import Data
from smol import DRAFT, V, Draft, Teacher, draft_layer

torch.set_float32_matmul_precision("high")


class Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, E, ht, Et, w, part, alpha, found):
        Eb = E.bfloat16()
        w = w / w.sum()
        dH, dE, total = torch.empty_like(h), torch.zeros(E.shape, device=E.device), 0.0
        same, losses = [], []
        for i in range(0, len(h), part):
            S = h[i : i + part] @ Eb.T
            P = ht[i : i + part] @ Et.T
            loss, agree = k.kl_(S, P, w[i : i + part].contiguous(), alpha)
            torch.mm(S, Eb, out=dH[i : i + part])
            dE += S.T @ h[i : i + part]
            losses.append(loss.sum()), same.append(agree)
        found.append((torch.cat(same) * w).sum())
        ctx.save_for_backward(dH, dE)
        return torch.stack(losses).sum()

    @staticmethod
    def backward(ctx, go):
        dH, dE = ctx.saved_tensors
        return dH * go.to(dH.dtype), dE * go, None, None, None, None, None, None


def orthogonalise(g):
    x = g.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.95, wd=0.01):
        super().__init__(params, dict(lr=lr, momentum=momentum, wd=wd))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, ps in by_shape.items():
                bufs = [self.state[p].setdefault("m", torch.zeros_like(p)) for p in ps]
                grads = [p.grad for p in ps]
                torch._foreach_lerp_(bufs, grads, 1 - group["momentum"])
                u = orthogonalise(torch.stack(torch._foreach_lerp(grads, bufs, group["momentum"])))
                scale = max(1, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(ps, 1 - group["lr"] * group["wd"])
                torch._foreach_add_(ps, list(u.to(ps[0].dtype).unbind()), alpha=-group["lr"] * scale)


def parts(arrays, out, n, size=12 << 20):
    """One npz, cut in parts of 12 MB."""
    path = f"{out}.npz"
    np.savez(path, **arrays)
    b = open(path, "rb").read()
    for i in range(0, len(b), size):
        open(f"{out}.npz.{i // size:02}", "wb").write(b[i : i + size])
    os.remove(path)
    print(f"saved {out}.npz ({len(b)} bytes)", flush=True)


def pick(h, w, ht):
    """Rows that count."""
    j = (w.flatten() > 0).nonzero()[:, 0]
    return h.flatten(0, 1)[j], ht.flatten(0, 1)[j], w.flatten()[j]


@torch.no_grad()
def evaluate(model, teacher, data, n=32, T=1024, batches=4, part=16384):
    g = torch.Generator(data.dev).manual_seed(3)
    same = total = kl = hard = 0.0
    for _ in range(batches):
        x, y, w = data.rows("val", n, T, g)
        w = (w == 1).float()
        h, ht, ww = pick(model.hidden(x), w, teacher.hidden(x))
        for i in range(0, len(h), part):
            S, P = h[i : i + part] @ model.token_embd.bfloat16().T, ht[i : i + part] @ teacher.embd.T
            a, s = k.kl_(S, P, ww[i : i + part].contiguous(), 1.0)
            kl += a.sum().item(); same += s.sum().item(); total += len(s)
    return {"agree": round(same / total, 4), "kl": round(kl / total, 4), "tokens": int(total)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("target"), ap.add_argument("out")
    ap.add_argument("--data", nargs="+", required=True), ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--rows", type=int, default=128), ap.add_argument("--seq", type=int, default=1024)
    ap.add_argument("--part", type=int, default=32768), ap.add_argument("--alpha", type=float, default=0.7)
    ap.add_argument("--lr", type=float, default=0.02), ap.add_argument("--adam-lr", type=float, default=2e-3)
    for n in DRAFT:
        ap.add_argument(f"--{n}", type=int, default=DRAFT[n])
    ap.add_argument("--save", type=float, default=120), ap.add_argument("--init", help="weights to go on from")
    ap.add_argument("--flat", type=float, default=0.45, help="share of the time at the whole rate")
    ap.add_argument("--long", type=float, default=0.75, help="share of the time after which rows are four times as long")
    ap.add_argument("--device", default="cuda"), ap.add_argument("--steps", type=int, default=0)
    a = ap.parse_args()
    dev, begin = a.device, time.time()
    torch.manual_seed(0)
    data = Data(a.data, dev)
    cuda = dev == "cuda"
    teacher = Teacher(a.target, dev, torch.float16 if cuda else torch.float32, compiled=cuda)
    model = Draft({n: getattr(a, n) for n in DRAFT}).to(dev)
    if cuda:
        model.layer = torch.compile(draft_layer, dynamic=False)
    with torch.no_grad():                                  # the directions in which the target's embeddings differ most
        e = teacher.embd32
        _, U = torch.linalg.eigh(e.T @ e)
        model.token_embd.copy_(e @ U[:, -model.c["dim"]:].flip(1))
        model.output_norm.fill_(0.35)                      # logits begin with a deviation of one
        if a.init:
            for n, v in np.load(a.init).items():
                model.state_dict()[n.removesuffix(".weight")].copy_(torch.from_numpy(v.astype(np.float32)))
    print("draft", sum(p.numel() for p in model.parameters()) / 1e6, "M parameters; embedding's deviation",
          model.token_embd.std().item(), f"ready after {time.time() - begin:.1f} s", flush=True)
    hidden = [p for n, p in model.named_parameters() if p.dim() == 2 and "embd" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or "embd" in n]
    opts = [Muon(hidden, a.lr), torch.optim.AdamW(rest, lr=a.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=cuda)]
    g = torch.Generator(dev).manual_seed(1)
    step, n_tok, log_at, started, saved, found = 0, 0, 0.0, None, time.time(), []
    while not a.steps or step < a.steps:
        now = time.time()
        p = 0 if started is None else (now - started) / max(1, a.seconds - (started - begin))
        if p >= 1:
            break
        lr = min(1, (step + 1) / 100) * (1 if p < a.flat else max(0.02, (1 - p) / (1 - a.flat)))
        for o, base in zip(opts, (a.lr, a.adam_lr)):
            for group in o.param_groups:
                group["lr"] = base * lr
        shape = (a.rows, a.seq) if p < a.long else (a.rows // 4, a.seq * 4)
        x, y, w = data.rows("train", *shape, g)
        ht = teacher.hidden(x)
        h, ht, w = pick(model.hidden(x), w, ht)
        loss = Head.apply(h, model.token_embd, ht, teacher.embd, w, a.part, a.alpha, found)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for o in opts:
            o.step()
        model.zero_grad(set_to_none=True)
        step += 1
        n_tok += x.numel()
        if started is None and step == 5:
            torch.cuda.synchronize() if cuda else None
            started, n_tok = time.time(), 0
            print(f"compiled after {started - begin:.0f} s", flush=True)
        if time.time() - begin > log_at:
            agree = sum(f.item() for f in found) / len(found)
            rate = n_tok / max(1e-9, time.time() - started) if started else 0
            print(f"{time.time()-begin:6.1f}s step {step} lr {lr:.3f} loss {loss.item():.4f} agree {agree:.4f} "
                  f"{n_tok/1e6:.1f}M tokens {rate/1e3:.0f}k/s", flush=True)
            log_at, found[:] = time.time() - begin + 15, []
        if time.time() - saved > a.save:
            parts(model.arrays(), a.out, model.c)
            saved = time.time()
        if step % 4 == 0 and cuda:
            torch.cuda.synchronize()
    print("steps", step, f"{n_tok/1e6:.1f}M tokens", flush=True)
    parts(model.arrays(), a.out, model.c)
    print("held out", evaluate(model, teacher, data, n=min(32, a.rows), T=a.seq), flush=True)
    print("held out, rows of", a.seq * 4, evaluate(model, teacher, data, n=max(1, min(32, a.rows) // 4), T=a.seq * 4), flush=True)
    if cuda:
        print(f"peak memory {torch.cuda.max_memory_allocated()/2**30:.1f} GiB; {time.time()-begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
