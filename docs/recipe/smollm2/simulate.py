"""What the best choice of guesses would bring, by measured times of steps and the draft's calibrated confidence.

    python simulate.py REPLIES.json DRAFT.gguf --draft-ms 0.24 --rows 6.07 9.68 12.72 14.25 18.91 21.46 0 21.83 [--temperature 0]

REPLIES.json is of agree.py. --rows: ms of a step with 1, 2, ... rows; 0: this width is not used.
"""
import argparse, json
import numpy as np
from llama_cpp import Llama


def walk(replies, draft_ms, step_ms, stop):
    """Milliseconds a token and tokens a step, drafting on while the chain is right with probability `stop` or more."""
    ms = tokens = steps = 0
    for guesses in replies:
        at = 0
        while at < len(guesses):
            chance, sum_, drafted, best = 1.0, 1.0, 0, (1 / step_ms[1], 0)
            for p, _ in guesses[at : at + max(step_ms) - 1]:
                drafted, chance = drafted + 1, chance * p
                sum_ += chance
                if drafted + 1 in step_ms:
                    best = max(best, (sum_ / step_ms[drafted + 1], drafted))
                if chance < stop:
                    break
            right = 0
            while right < best[1] and at + right < len(guesses) and guesses[at + right][1]:
                right += 1
            ms += drafted * draft_ms + step_ms[best[1] + 1]
            tokens += min(right + 1, len(guesses) - at)
            at, steps = at + right + 1, steps + 1
    return ms / tokens, tokens / steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("replies"), ap.add_argument("draft"), ap.add_argument("--draft-ms", type=float, required=True)
    ap.add_argument("--rows", type=float, nargs="+", required=True), ap.add_argument("--temperature", type=float, default=0.0)
    a = ap.parse_args()
    step_ms = {k: ms for k, ms in enumerate(a.rows, 1) if ms}
    m, replies = Llama(a.draft, n_ctx=8192, n_batch=512, logits_all=True, verbose=False), []
    for t in json.load(open(a.replies)):
        if t["T"] != a.temperature:
            continue
        m.reset(); m.eval(t["prompt"] + t["tokens"][:-1])
        l = m.scores[m.n_tokens - len(t["tokens"]) : m.n_tokens].astype(np.float64)
        sure = 1 / np.exp(l - l.max(-1, keepdims=True)).sum(-1)
        replies.append(list(zip(sure, l.argmax(-1) == np.array(t["tokens"]))))
    sure, right = (np.array([g[i] for r in replies for g in r]) for i in (0, 1))
    edges = np.quantile(sure, np.linspace(0, 1, 11)[1:-1])
    rate = [right[np.digitize(sure, edges) == i].mean() for i in range(10)]
    print("right by tenth of confidence", np.round(rate, 2).tolist())
    replies = [[(rate[np.digitize(p, edges)], ok) for p, ok in r] for r in replies]
    known = [[(float(ok), ok) for _, ok in r] for r in replies]
    for name, rows, cost in (("draft", replies, a.draft_ms), ("free, and known which are right", known, 0.0)):
        (ms, each), stop = min((walk(rows, cost, step_ms, s), s) for s in np.arange(0.2, 1, 0.1))
        print(f"{name}: {ms:.2f} ms a token, {step_ms[1] / ms:.3f} of plain steps, {each:.2f} tokens a step, chains end below {stop:.1f}")


main()
