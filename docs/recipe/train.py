"""Train the target, then distil the draft from it, on one CUDA device.

    python train.py target --data DIR --work DIR --seconds 800
    python train.py target --data DIR --work DIR --seconds 500 --progress 0 0.6     (first part)
    python train.py target --data DIR --work DIR --seconds 330 --progress 0.6 1     (resumed)
    python train.py draft  --data DIR --work DIR --seconds 240

The schedule follows the wall clock: learning rate, data mix and sequence length are
functions of the progress from 0 to 1, so a run always ends with a finished decay.
DIR holds {text,chats}.{train,val}.bin and chats.{train,val}.idx from pack.py.
"""

import argparse, math, os, time
import numpy as np, torch, torch.nn.functional as F
from model import Llama

torch.set_float32_matmul_precision("high")
DEV = "cuda"


def load(path, dtype=np.int16):
    return torch.from_numpy(np.fromfile(path, dtype)).to(DEV)


class Data:
    def __init__(self, root):
        self.bin = {(k, s): load(f"{root}/{k}.{s}.bin") for k in ("text", "chats") for s in ("train", "val")}
        self.idx = {s: load(f"{root}/chats.{s}.idx", np.int32).long() for s in ("train", "val")}
        for k, v in self.bin.items():
            print(k, f"{len(v) / 1e6:.1f}M tokens", flush=True)

    def rows(self, kind, split, n, T, g):
        a = self.bin[kind, split]
        at = torch.randint(0, len(a) - T - 1, (n,), device=DEV, generator=g)
        if kind == "chats":  # most rows begin with a conversation
            s = self.idx[split]
            s = s[s < len(a) - T - 1]
            j = s[torch.randint(0, len(s), (n,), device=DEV, generator=g)]
            at = torch.where(torch.rand(n, device=DEV, generator=g) < 0.8, j, at)
        w = a[at[:, None] + torch.arange(T + 1, device=DEV)]
        ids = (w & 0x7FFF).long()
        weight = (w[:, 1:] < 0).float() if kind == "chats" else torch.ones(n, T, device=DEV)
        return ids[:, :-1], ids[:, 1:], weight

    def batch(self, share, n, T, g):
        c = round(n * share)
        a, b = self.rows("chats", "train", c, T, g), self.rows("text", "train", n - c, T, g)
        x, y, w = (torch.cat(p) for p in zip(a, b))
        # the user's words count a little: they teach the model the domain
        return x, y, torch.where(torch.arange(n, device=DEV)[:, None] < c, 0.1 + 0.9 * w, w)


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by a Newton-Schulz iteration, for the hidden matrices."""

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
                u = torch.stack(torch._foreach_lerp(grads, bufs, group["momentum"]))
                u = orthogonalise(u)
                scale = max(1, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(ps, 1 - group["lr"] * group["wd"])
                torch._foreach_add_(ps, list(u.to(ps[0].dtype).unbind()), alpha=-group["lr"] * scale)


@torch.compile(dynamic=False)
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


def save(model, path):
    np.savez(path, **{k: v.half().cpu().numpy() for k, v in model.state_dict().items()})


def weights(path):
    return {k: torch.from_numpy(v).float() for k, v in np.load(path).items()}


@torch.no_grad()
def evaluate(model, data, teacher=None, n=32, T=1024):
    out = {}
    for kind in ("text", "chats"):
        g = torch.Generator(DEV).manual_seed(1)
        tot = cnt = agree = 0.0
        for _ in range(4):
            x, y, w = data.rows(kind, "val", n, T, g)
            with torch.autocast(DEV, torch.bfloat16):
                lg = model(x)
            ce = F.cross_entropy(lg.float().flatten(0, 1), y.flatten(), reduction="none").view_as(w)
            tot += (ce * w).sum().item()
            cnt += w.sum().item()
            if teacher is not None:
                with torch.autocast(DEV, torch.bfloat16):
                    t = teacher(x)
                agree += ((t.argmax(-1) == lg.argmax(-1)).float() * w).sum().item()
        out[kind] = round(tot / cnt, 4)
        if teacher is not None:
            out["agree_" + kind] = round(agree / cnt, 4)
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("which", choices=["target", "draft"])
    ap.add_argument("--data", required=True), ap.add_argument("--work", required=True)
    ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--progress", type=float, nargs=2, default=[0.0, 1.0])
    ap.add_argument("--tokens", type=int, default=1 << 18, help="tokens in a step")
    ap.add_argument("--lr", type=float, default=0.02), ap.add_argument("--adam-lr", type=float, default=2e-3)
    ap.add_argument("--long", type=float, default=0.90, help="progress at which the context becomes 4096")
    ap.add_argument("--seq", type=int, default=1024, help="context before that")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--init", help="weights to start from")
    a = ap.parse_args()
    os.makedirs(a.work, exist_ok=True)
    torch.manual_seed(a.seed)
    data = Data(a.data)
    raw = Llama(a.which).to(DEV)
    print(a.which, sum(p.numel() for p in raw.parameters()) / 1e6, "M parameters", flush=True)
    teacher = None
    if a.which == "draft":
        teacher = Llama("target").to(DEV).to(torch.bfloat16).eval()
        teacher.load_state_dict(weights(f"{a.work}/target.npz"))
        teacher.requires_grad_(False)
        teacher = torch.compile(teacher, dynamic=False)
    hidden = [p for n, p in raw.named_parameters() if p.dim() == 2 and "embd" not in n]
    rest = [p for n, p in raw.named_parameters() if p.dim() != 2 or "embd" in n]
    opts = [
        Muon(hidden, a.lr),
        torch.optim.AdamW(rest, lr=a.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    state = f"{a.work}/{a.which}.state"
    step0 = 0
    if a.init:
        raw.load_state_dict(weights(a.init))
    if a.progress[0] > 0 and os.path.exists(state):
        s = torch.load(state, map_location=DEV)
        raw.load_state_dict(s["model"])
        step0 = s["step"]
        for o, so in zip(opts, s["opts"]):
            o.load_state_dict(so)
        print("resumed at step", step0, flush=True)
    model = torch.compile(raw, dynamic=False)
    g = torch.Generator(DEV).manual_seed(1234 + step0)

    @torch.compile(dynamic=False)
    def ce_part(lg, y, w):
        ce = F.cross_entropy(lg.float().flatten(0, 1), y.flatten(), reduction="none").view_as(w)
        return (ce * w).sum() / w.sum()

    def target_loss(x, y, w):
        with torch.autocast(DEV, torch.bfloat16):
            lg = model(x)
        return ce_part(lg, y, w)

    @torch.compile(dynamic=False)
    def kl_part(lg, t, y, w):
        lp, tp = F.log_softmax(lg.float(), -1), F.log_softmax(t.float(), -1)
        kl = (tp.exp() * (tp - lp)).sum(-1)
        hard = F.nll_loss(lp.flatten(0, 1), t.argmax(-1).flatten(), reduction="none").view_as(kl)
        return ((0.7 * kl + 0.3 * hard) * w).sum() / w.sum()

    def draft_loss(x, y, w):
        with torch.no_grad():
            t = teacher(x)
        with torch.autocast(DEV, torch.bfloat16):
            lg = model(x)
        return kl_part(lg, t, y, w)

    loss_fn = target_loss if teacher is None else draft_loss

    t0 = time.time()
    started = None  # the clock starts when the kernels are compiled
    step, tokens, recent = step0, 0, []
    log_at = 0
    while True:
        now = time.time()
        frac = 0.0 if started is None else (now - started) / max(1.0, a.seconds - (started - t0))
        if frac >= 1:
            break
        p = a.progress[0] + frac * (a.progress[1] - a.progress[0])
        T = 4096 if p > a.long else a.seq
        share = (0.35 + 0.35 * min(1, p / 0.6) + (0.15 * max(0, p - 0.6) / 0.4)) if teacher is None else 0.8
        lr = min(1, (step - step0 + 1) / 100) * (1.0 if p < 0.45 else max(0.02, (1 - p) / 0.55))
        for o, base in zip(opts, (a.lr, a.adam_lr)):
            for gr in o.param_groups:
                gr["lr"] = base * lr
        x, y, w = data.batch(share, a.tokens // T, T, g)
        loss = loss_fn(x, y, w)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        for o in opts:
            o.step()
        raw.zero_grad(set_to_none=True)
        step += 1
        tokens += x.numel()
        if started is None and step - step0 >= 5:
            torch.cuda.synchronize()
            started = time.time()
            tokens = 0
            print(f"compiled in {started - t0:.1f} s", flush=True)
        if time.time() - t0 > log_at:
            recent = loss.item()
            rate = tokens / max(1e-9, time.time() - started) if started else 0
            print(
                f"{time.time() - t0:6.1f}s step {step} p {p:.3f} T {T} chat {share:.2f} lr {lr:.3f} loss {recent:.4f} {rate / 1e3:.0f}k tok/s",
                flush=True,
            )
            log_at += 10 if teacher is None else 15
        if step % 4 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    print("steps", step, "tokens this part", f"{tokens / 1e6:.0f}M", flush=True)
    save(raw, f"{a.work}/{a.which}.npz")
    torch.save({"model": raw.state_dict(), "opts": [o.state_dict() for o in opts], "step": step}, state)
    print("validation", evaluate(raw, data, teacher), flush=True)


if __name__ == "__main__":
    main()
