"""Check the GGUF files against the tokenizer and the float weights, and measure acceptance and speed.

    python verify.py --models DIR --tokenizer tokenizer.json --lines corpus.jsonl --weights run/ --prompts ../../benchmarks/prompts.jsonl

Needs llama-cpp-python, tokenizers and numpy; runs on a CPU.
"""

import argparse, ctypes, json, random, time
import numpy as np
from chatml import prompt
from export_gguf import CONFIGS


def forward(w, c, ids):
    """The model in float32 with numpy; returns the logits of every position."""
    n, hd = len(ids), 64
    x = w["token_embd.weight"][ids]
    f = 10000.0 ** (-np.arange(0, hd, 2) / hd)
    a = np.outer(np.arange(n), f)
    cos, sin = np.cos(a).astype(np.float32), np.sin(a).astype(np.float32)
    norm = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g

    def rope(v):
        e, o = v[..., 0::2], v[..., 1::2]
        return np.stack([e * cos - o * sin, e * sin + o * cos], -1).reshape(v.shape)

    mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)
    for i in range(c["layers"]):
        g = lambda k: w[f"blk.{i}.{k}.weight"]
        y = norm(x, g("attn_norm"))
        q = rope((y @ g("attn_q").T).reshape(n, -1, hd).transpose(1, 0, 2))
        k = rope((y @ g("attn_k").T).reshape(n, -1, hd).transpose(1, 0, 2))
        v = (y @ g("attn_v").T).reshape(n, -1, hd).transpose(1, 0, 2)
        r = c["heads"] // c["kv_heads"]
        k, v = k.repeat(r, 0), v.repeat(r, 0)
        s = q @ k.transpose(0, 2, 1) / 8 + mask
        s = np.exp(s - s.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        x = x + (s @ v).transpose(1, 0, 2).reshape(n, -1) @ g("attn_output").T
        y = norm(x, g("ffn_norm"))
        u = y @ g("ffn_gate").T
        x = x + (u / (1 + np.exp(-u)) * (y @ g("ffn_up").T)) @ g("ffn_down").T
    return norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


def main():
    ap = argparse.ArgumentParser()
    for o in ("models", "tokenizer", "lines", "weights", "prompts"):
        ap.add_argument("--" + o, required=True)
    ap.add_argument("--k", type=int, default=4), ap.add_argument("--max-tokens", type=int, default=400)
    a = ap.parse_args()
    from llama_cpp import Llama
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(a.tokenizer)
    models = {
        k: Llama(
            f"{a.models}/{f}", n_ctx=4096, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False
        )
        for k, f in (("target", "duo-tiny-q8_0.gguf"), ("draft", "duo-tiny-draft-q8_0.gguf"))
    }

    rnd, lines = random.Random(3), []
    for n, l in enumerate(open(a.lines)):
        if n % 7 == 0:
            t = json.loads(l)["text"].split("\n")
            lines += rnd.sample(t, min(3, len(t)))
    lines = rnd.sample(lines, 1800)
    alphabet = "abc XYZ 0123 \t'\"()[]{}.,:;_-é漢字ß€😀\u00a0\u2003Ωя  \n"
    lines += ["".join(rnd.choice(alphabet) for _ in range(rnd.randint(1, 60))) for _ in range(200)]
    bad = [
        l
        for l in lines
        if models["target"].tokenize(l.encode(), add_bos=False, special=True)
        != tok.encode(l, add_special_tokens=False).ids
    ]
    print("tokenizer:", len(lines), "lines,", len(bad), "mismatches", [b[:40] for b in bad[:5]])

    text = next(json.loads(l)["text"] for l in open(a.lines) if "/library/argparse.rst" in l)
    ids = tok.encode(text).ids[1000:1500]
    for name, m in models.items():
        w = {k: v.astype(np.float32) for k, v in np.load(f"{a.weights}/{name}.npz").items()}
        ref = forward(w, CONFIGS[name], np.array(ids))
        m.reset()
        m.eval(ids)
        got = np.array(m._scores[: len(ids)])
        d = np.abs(ref - got)
        print(
            f"logits {name}: max difference {d.max():.3f}, mean {d.mean():.4f}, std of the logits {ref.std():.2f}, top-1 agreement {(ref.argmax(-1) == got.argmax(-1)).mean():.3f}"
        )

    # the target's greedy answers, and what the draft would have said at each place
    stats, eos = {}, tok.token_to_id("<|im_end|>")
    spent, made = 0.0, 0
    for l in open(a.prompts):
        p = json.loads(l)
        ids = tok.encode(prompt(p["messages"], p.get("tools"))).ids
        t = models["target"]
        t.reset()
        t.eval(ids)
        out, t0 = [], time.perf_counter()
        nxt = int(np.argmax(t._scores[len(ids) - 1]))
        while len(out) < a.max_tokens:
            out.append(nxt)
            if nxt == eos:
                break
            t.eval([nxt])
            nxt = int(np.argmax(t._scores[t.n_tokens - 1]))
        spent += time.perf_counter() - t0
        made += len(out)
        d = models["draft"]
        d.reset()
        d.eval(ids + out[:-1])
        guess = np.array(d._scores[len(ids) - 1 : len(ids) - 1 + len(out)]).argmax(-1)
        hit = guess == np.array(out)
        # speculative decoding with k drafted tokens: tokens kept of those drafted, in steps
        i = steps = drafted = kept = 0
        while i < len(out):
            run = 0
            while run < a.k and i + run < len(out) and hit[i + run]:
                run += 1
            drafted += min(a.k, len(out) - i)
            kept += run
            i += run + 1
            steps += 1
        s = stats.setdefault(p["category"], np.zeros(5))
        s += [hit.sum(), len(out), drafted, kept, steps]
        p["answer"] = tok.decode(out[:-1] if out[-1] == eos else out, skip_special_tokens=False)
        print(
            "ANSWER",
            json.dumps(
                {
                    "id": p["id"],
                    "user": p["messages"][-1]["content"],
                    "answer": p["answer"],
                    "agree": round(float(hit.mean()), 2),
                },
                ensure_ascii=False,
            ),
        )
    stats["all"] = sum(stats.values())
    print(
        f"{'category':12s} {'tokens':>6s} {'agreement':>9s} {'accepted of drafted':>20s} {'tokens per target pass':>22s}   (k = {a.k})"
    )
    for c, s in stats.items():
        print(f"{c:12s} {int(s[1]):6d} {s[0] / s[1]:9.3f} {s[3] / s[2]:20.3f} {s[1] / s[4]:22.2f}")
    print(f"target decoding through the Python binding, 1 thread: {made / spent:.0f} tokens/s")


if __name__ == "__main__":
    main()
