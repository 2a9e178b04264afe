"""Conversations that the target has with itself, on one CUDA device.

    python gen.py TARGET.gguf seeds.npz OUT --seconds 300

It writes the user's turn too, under its own system prompt; some begin with a given start, or are given whole
(seeds.npz).  Every slot is at its own place: a step evaluates one token of each, and a slot whose conversation
has ended gets another one every few steps.  OUT.tok.npy (uint16), OUT.mark.npy (1: the assistant's, 2: the
user's, 0: given), OUT.idx.npy: where conversations start.
"""
import argparse, os, time
import numpy as np, torch
import kernels as k
from smol import TARGET, V, Teacher, rope_table

END, START = 2, 1
SYSTEM = 26                                                # replaced by what seeds.npz says


class Stepper:
    """Weights, caches and the state of all slots; step() is captured as a CUDA graph."""
    def __init__(self, teacher, seeds, B, T, dev, half, umax=160):
        c, self.B, self.T, self.dev, self.umax = TARGET, B, T, dev, umax
        self.t, self.c, self.half = teacher, c, half
        L, H, KV = c["layers"], c["heads"], c["kv"]
        self.K = [torch.zeros(B, KV, T, 64, device=dev, dtype=half) for _ in range(L)]
        self.Vc = [torch.zeros(B, KV, T, 64, device=dev, dtype=half) for _ in range(L)]
        self.cos, self.sin = rope_table(T, dev)
        self.w = [(a.T.contiguous(), b.T.contiguous(), u.T.contiguous(), d.T.contiguous(), n1, n2) for a, b, u, d, n1, n2 in teacher.layers]
        self.unembd = teacher.embd.T.contiguous()
        e = lambda *s, d=torch.int32: torch.zeros(*s, device=dev, dtype=d)
        S = seeds["scripts"].shape[1]
        self.pos, self.tok, self.phase, self.left = e(B), e(B), e(B), e(B)
        self.fi, self.flen, self.script = e(B), e(B), e(B, S)
        self.n, self.amax = e(B), e(B)
        self.done, self.bad = e(B, d=torch.bool), e(B, d=torch.bool)
        self.temp, self.ta, self.topp = e(B, d=torch.float32), e(B, d=torch.float32), e(B, d=torch.float32)
        self.out, self.mark = e(B, T), e(B, T, d=torch.uint8)
        self.drawn, self.steps = e(B), e(1)
        tail = lambda r: seeds[r].tolist() + [0] * (S - len(seeds[r]))
        self.tails = torch.tensor([tail("to_assistant"), tail("to_user")], device=dev, dtype=torch.int32)
        self.ntail = torch.tensor([len(seeds["to_assistant"]), len(seeds["to_user"])], device=dev, dtype=torch.int32)
        self.rows = torch.arange(B, device=dev)
        D, F = c["dim"], c["ffn"]
        self.x = torch.zeros(B, D, device=dev)
        self.y, self.o = torch.zeros(B, D, device=dev, dtype=half), torch.zeros(B, H * 64, device=dev, dtype=half)
        self.h = torch.zeros(B, F, device=dev, dtype=half)
        self.logits = torch.zeros(B, V, device=dev, dtype=half)

    def step(self):
        c, t = self.c, self.t
        self.x.copy_(t.embd[self.tok.long()])
        d = None
        for i, (wqkv, wo, wgu, wd, n1, n2) in enumerate(self.w):
            k.add_norm(self.x, d, n1, self.y)
            k.attn_step(self.y @ wqkv, self.o, self.K[i], self.Vc[i], self.cos, self.sin, self.pos, c["heads"], c["kv"])
            k.add_norm(self.x, self.o @ wo, n2, self.y)
            k.silu_mul(self.y @ wgu, self.h)
            d = self.h @ wd
        k.add_norm(self.x, d, t.out_norm, self.y)
        torch.mm(self.y, self.unembd, out=self.logits)
        k.sample(self.logits, self.temp, self.topp, self.steps, self.drawn)
        self.advance()

    def advance(self):
        live = ~self.done
        forced = self.fi < self.flen
        nxt = torch.where(forced, self.script.gather(1, self.fi.long().clamp(max=self.script.shape[1] - 1)[:, None])[:, 0], self.drawn)
        self.fi += (forced & live).int()
        kind = torch.where(forced, 0, torch.where(self.phase == 1, 1, 2)).to(torch.uint8)
        at = (self.pos + 1).clamp(max=self.T - 1).long()
        old = self.out[self.rows, at]
        self.out[self.rows, at] = torch.where(live, nxt, old)
        self.mark[self.rows, at] = torch.where(live, kind, self.mark[self.rows, at])
        self.n += (~forced & live).int()
        drawn = ~forced & live
        ended = drawn & (nxt == END)
        self.bad |= drawn & (nxt < 17) & (nxt != END)
        user = self.phase == 0
        self.bad |= ended & user & (self.n < 3)
        self.left -= (ended & ~user).int()
        over = ended & ~user & (self.left <= 0)
        self.bad |= drawn & user & (self.n > self.umax)
        cut = drawn & ~user & (self.n >= self.amax)
        go = ended & ~over
        row = torch.where(user[:, None], self.tails[0][None], self.tails[1][None])
        self.script.copy_(torch.where(go[:, None], row, self.script))
        self.flen.copy_(torch.where(go, torch.where(user, self.ntail[0], self.ntail[1]), self.flen))
        self.fi.masked_fill_(go, 0)
        self.n.masked_fill_(go, 0)
        # the phase changes when the forced tail begins: those tokens are marked as given
        self.phase.copy_(torch.where(go, 1 - self.phase, self.phase))
        self.temp.copy_(torch.where(go, torch.where(user, self.ta, 1.0), self.temp))
        self.pos += live.int()
        self.tok.copy_(torch.where(live, nxt, self.tok))
        self.done |= over | cut | self.bad | (self.pos >= self.T - 2)
        self.steps += 1


def distinct(tok, length, n=6):
    """Share of different n-grams, by row."""
    B, T = tok.shape
    h = torch.zeros(B, T - n + 1, dtype=torch.long, device=tok.device)
    for i in range(n):
        h = h * 49157 + tok[:, i : T - n + 1 + i].long()
    ok = torch.arange(T - n + 1, device=tok.device)[None] < (length - n + 1)[:, None]
    h = torch.where(ok, h, -torch.arange(1, T - n + 2, device=tok.device)[None])
    s = h.sort(1).values
    new = torch.ones_like(ok)
    new[:, 1:] = s[:, 1:] != s[:, :-1]
    return (new.sum(1) - (~ok).sum(1)).float() / ok.sum(1).clamp(min=1)


class Run:
    def __init__(self, s, seeds, g):
        self.s, self.g = s, g
        d = s.dev
        self.scripts = torch.from_numpy(seeds["scripts"].astype(np.int32)).to(d)
        self.lens = torch.from_numpy(seeds["lens"].astype(np.int32)).to(d)
        self.phases = torch.from_numpy(seeds["phase"].astype(np.int32)).to(d)
        self.free = torch.from_numpy(seeds["free"].astype(np.int64)).to(d)      # scripts without a seed
        self.given = torch.from_numpy(seeds["given"].astype(np.int64)).to(d)
        self.order, self.next = torch.randperm(len(self.given), device=d, generator=g), 0
        self.parts, self.kept, self.tokens, self.dropped, self.looped = [], 0, 0, 0, 0
        self.share, self.share_long = 0.40, 0.20           # of conversations with a seed, with a long text
        t = lambda name: torch.from_numpy(seeds[name].astype(np.int32)).to(d)
        self.long, self.asks, self.asks_len = t("long").long(), t("asks"), t("asks_len")
        self.reply = t("reply")
        self.pool, self.pool_len = torch.zeros(4096, 520, device=d, dtype=torch.int32), torch.zeros(4096, device=d, dtype=torch.int32)
        self.pool_n = 0

    def rand(self, n):
        return torch.rand(n, device=self.s.dev, generator=self.g)

    def fill(self, idx):
        s, n = self.s, len(idx)
        at = (self.next + torch.arange(n, device=s.dev)) % len(self.order)
        self.next += n
        given = self.given[self.order[at]]
        free = self.free[(self.rand(n) * len(self.free)).long().clamp(max=len(self.free) - 1)]
        u = self.rand(n)
        j = torch.where(u < self.share, given, free)
        long = self.long[(self.rand(n) * len(self.long)).long().clamp(max=len(self.long) - 1)]
        j = torch.where(u > 1 - self.share_long, long, j)
        sc, flen, phase = self.scripts[j], self.lens[j], self.phases[j]
        if self.pool_n:                                    # half of the long texts are replies of the target
            sc, flen, phase = self.quote(u > 1 - self.share_long / 2, sc.clone(), flen.clone(), phase.clone())
        s.script[idx] = sc
        s.flen[idx], s.fi[idx] = flen, 1
        s.tok[idx], s.pos[idx], s.n[idx] = sc[:, 0], 0, 0
        s.out[idx, 0], s.mark[idx, 0] = sc[:, 0], 0
        s.phase[idx] = phase
        u = self.rand(n)
        s.left[idx] = (1 + (u < 0.3).int() + (u < 0.06).int()).int()
        ta = torch.where(self.rand(n) < 0.5, 0.0, 0.6 + 0.4 * self.rand(n))
        s.ta[idx] = ta
        s.temp[idx] = torch.where(phase == 1, ta, 1.0)
        s.topp[idx] = 0.95
        s.amax[idx] = (96 + 416 * self.rand(n) ** 1.5).int()
        s.done[idx] = False
        s.bad[idx] = False

    def quote(self, chosen, sc, flen, phase):
        """Scripts that ask for something about a reply of the pool, in place of those chosen."""
        rows = chosen.nonzero()[:, 0]
        n = len(rows)
        a = (self.rand(n) * len(self.asks)).long().clamp(max=len(self.asks) - 1)
        p = (self.rand(n) * self.pool_n).long().clamp(max=self.pool_n - 1)
        at = torch.arange(sc.shape[1], device=sc.device)[None]
        first, body = self.asks_len[a][:, None], self.pool_len[p][:, None]
        tail = at - first - body
        made = self.asks[a].gather(1, at.expand(n, -1).clamp(max=self.asks.shape[1] - 1))
        made = torch.where(at >= first, self.pool[p].gather(1, (at - first).clamp(0, self.pool.shape[1] - 1)), made)
        made = torch.where(tail >= 0, self.reply[tail.clamp(0, len(self.reply) - 1)], made)
        sc[rows], flen[rows], phase[rows] = made, (first + body + len(self.reply))[:, 0], 1
        return sc, flen, phase

    def keep(self, tok, mark, length):
        """Put first replies of 100 to 500 tokens into the pool."""
        said = (mark == 1) & (torch.arange(tok.shape[1], device=tok.device)[None] < length[:, None])
        begin = said.int().argmax(1)
        after = (~said) & (torch.arange(tok.shape[1], device=tok.device)[None] > begin[:, None])
        end = torch.where(after.any(1), after.int().argmax(1), length) - 1   # without the end of the turn
        n = end - begin
        ok = (said.any(1) & (n >= 100) & (n <= 500)).nonzero()[:, 0]
        if not len(ok):
            return
        span = torch.arange(self.pool.shape[1], device=tok.device)[None]
        text = tok[ok].gather(1, (begin[ok][:, None] + span).clamp(max=tok.shape[1] - 1))
        if self.pool_n + len(ok) <= len(self.pool):
            where = self.pool_n + torch.arange(len(ok), device=tok.device)
            self.pool_n += len(ok)
        else:
            where = (self.rand(len(ok)) * self.pool_n).long().clamp(max=max(self.pool_n - 1, 0))
        self.pool[where], self.pool_len[where] = text, n[ok].int()

    def flush(self):
        s = self.s
        idx = s.done.nonzero()[:, 0]
        if not len(idx):
            return
        good = idx[~s.bad[idx]]
        length = s.pos[good] + 1
        tok, mark = s.out[good], s.mark[good]
        loop = distinct(tok, length) < 0.6
        self.dropped += len(idx) - len(good)
        self.looped += int(loop.sum())
        tok, mark, length = tok[~loop], mark[~loop], length[~loop]
        self.keep(tok, mark, length)
        self.parts.append((tok.to(torch.int32).cpu(), mark.cpu(), length.cpu()))
        self.kept += len(tok)
        self.tokens += int(length.sum())
        self.fill(idx)


def write(parts, out):
    toks, marks, seen, starts, at, repeats = [], [], set(), [], 0, 0
    for tok, mark, length in parts:
        tok, mark = tok.numpy().astype(np.uint16), mark.numpy()
        for r, n in enumerate(length.tolist()):
            a = tok[r, :n]
            key = hash(a.tobytes())
            if key in seen:
                repeats += 1
                continue
            seen.add(key)
            toks.append(a), marks.append(mark[r, :n]), starts.append(at)
            at += n
    tok, mark = np.concatenate(toks), np.concatenate(marks)
    np.save(out + ".tok.npy", tok), np.save(out + ".mark.npy", mark), np.save(out + ".idx.npy", np.array(starts, np.int64))
    print(f"{len(starts)} conversations, {len(tok)/1e6:.2f}M tokens, {int((mark == 1).sum())/1e6:.2f}M of the assistant, "
          f"{int((mark == 2).sum())/1e6:.2f}M of the user; {repeats} exact repeats dropped", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("target"), ap.add_argument("seeds"), ap.add_argument("out")
    ap.add_argument("--seconds", type=float, required=True)
    ap.add_argument("--slots", type=int, default=2048), ap.add_argument("--context", type=int, default=1152)
    ap.add_argument("--every", type=int, default=24), ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--half", default="float16"), ap.add_argument("--device", default="cuda")
    ap.add_argument("--show", type=int, default=0), ap.add_argument("--steps", type=int, default=0)
    a = ap.parse_args()
    begin = time.time()
    half = getattr(torch, a.half)
    seeds = dict(np.load(a.seeds))
    cuda = a.device == "cuda"
    teacher = Teacher(a.target, a.device, half)
    g = torch.Generator(a.device).manual_seed(a.seed)
    with torch.no_grad():
        s = Stepper(teacher, seeds, a.slots, a.context, a.device, half)
        s.steps.fill_(a.seed * 1000003 % 2**30)
        r = Run(s, seeds, g)
        r.fill(torch.arange(a.slots, device=a.device))
        s.step(), s.step()
        if cuda:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                s.step()
        run = graph.replay if cuda else s.step
        print(f"ready after {time.time() - begin:.1f} s", flush=True)
        t0, said, n = time.time(), 0, 0
        while time.time() - begin < a.seconds and (not a.steps or n < a.steps):
            for _ in range(a.every):
                run()
            n += a.every
            r.flush()
            if time.time() - t0 > said:
                el = time.time() - t0
                print(f"{el:6.1f}s {n} steps, {1e3*el/max(n,1):.2f} ms each, kept {r.kept} conversations, {r.tokens/1e6:.2f}M tokens "
                      f"({r.tokens/max(el,1e-3)/1e3:.0f}k/s), dropped {r.dropped}, looping {r.looped}", flush=True)
                said = el + 20
    if a.show:
        tok, mark, length = r.parts[-1] if r.parts else (s.out.cpu(), s.mark.cpu(), s.pos.cpu() + 1)
        for i in range(min(a.show, len(tok))):
            print(tok[i, : length[i]].tolist())
    write(r.parts, a.out) if r.parts else print("nothing finished")


if __name__ == "__main__":
    main()
