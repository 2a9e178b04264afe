"""At how many of the target's tokens a draft's first choice is the target's, by kind of text, greedy and at 0.8.

    python agree.py TARGET.gguf PROMPTS.jsonl REPLIES.json DRAFT.gguf...

The target's replies are made once and kept in REPLIES.json; its chat template is the file's own.
"""
import json, os, sys
import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

TOKENS, CONTEXT = 150, 8192


def replies(path, prompts):
    m, out, rng = Llama(path, n_ctx=CONTEXT, n_batch=512, verbose=False), [], np.random.default_rng(5)
    form = Jinja2ChatFormatter(m.metadata["tokenizer.chat_template"], eos_token="<|im_end|>", bos_token="<|im_start|>")
    for T in (0.0, 0.8):
        for p in prompts:
            ids = m.tokenize(form(messages=p["messages"]).prompt.encode(), add_bos=False, special=True)
            m.reset(); m.eval(ids)
            said, top = [], []
            while len(said) < TOKENS and len(ids) + len(said) < CONTEXT:
                l = np.ctypeslib.as_array(m._ctx.get_logits(), shape=(m.n_vocab(),)).astype(np.float64)
                top.append(int(l.argmax()))
                e = np.exp((l - l.max()) / (T or 1))
                said.append(int(rng.choice(len(e), p=e / e.sum())) if T else top[-1])
                if said[-1] == m.token_eos():
                    break
                m.eval([said[-1]])
            out.append(dict(kind=p["id"].split("-")[0], T=T, prompt=ids, tokens=said, top=top))
    return out


def main():
    target, prompts, kept, *drafts = sys.argv[1:]
    if not os.path.exists(kept):
        json.dump(replies(target, [json.loads(line) for line in open(prompts)]), open(kept, "w"))
    texts = json.load(open(kept))
    for path in drafts:
        m, found = Llama(path, n_ctx=CONTEXT, n_batch=512, logits_all=True, verbose=False), {}
        for t in texts:
            m.reset(); m.eval(t["prompt"] + t["tokens"][:-1])
            n = len(t["tokens"])
            best = m.scores[m.n_tokens - n : m.n_tokens].argmax(-1)
            for key in ((t["T"], "all"), (t["T"], t["kind"])):
                f = found.setdefault(key, np.zeros(3))
                f += (n, (best == np.array(t["top"])).sum(), (best == np.array(t["tokens"])).sum())
        print(os.path.basename(path))
        for (T, kind), (n, top, drawn) in found.items():
            print(f"  T {T} {kind:10s} the target's likeliest {top / n:.3f}, the token said {drawn / n:.3f} of {int(n)}", flush=True)


main()
