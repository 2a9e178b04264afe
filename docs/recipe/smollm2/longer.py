"""Add long beginnings to seeds.npz: code and documentation to explain, and instructions for texts that the target wrote.

    python longer.py TARGET.gguf seeds.npz OUT.npz PACKAGE_FOLDER...

The documents are source and docstrings of Python's standard library and of the packages in the folders (PSF, BSD).
"""
import ast, glob, os, random, sys
import numpy as np
from llama_cpp import Llama

WIDTH = 640
SYS = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
ON_CODE = ["Explain what this code does.", "What does this function return?", "Add comments to this code.", "Write a docstring for this function.", "Find a bug in this code.",
    "Rewrite this code in JavaScript.", "How can I make this code faster?", "Write a unit test for this function.", "Simplify this code.", "Which inputs make this code fail?", "Refactor this function.", "Explain this code line by line."]
ON_TEXT = ["Summarize the following text.", "Summarize this text in one sentence.", "What is the main point of this text?", "List the key points of the text.", "Translate this text to Spanish.", "Translate this text to French.",
    "Rewrite this text in simpler words.", "Rewrite the text so that it is shorter.", "Write three questions that this text answers.", "Extract all names and numbers from the text.", "Write a title for this text.", "Continue this text.",
    "Fix the grammar of this text.", "Explain this text to a child.", "Turn this text into bullet points.", "Who is this text for, and why?", "Write a reply to this text.", "Which words in the text are the most important?",
    "Is the following text correct? Explain.", "Answer with information from this text: what should I remember?", "Rewrite this text more formally.", "Describe the tone of this text."]


def documents(folders):
    """(is code, text) of every function of fifteen to sixty lines, and every docstring of some length."""
    found = []
    for folder in folders:
        for path in glob.glob(os.path.join(folder, "**", "*.py"), recursive=True):
            if "/test" in path or "site-packages" in path and "site-packages" not in folder:
                continue
            try:
                source = open(path, encoding="utf-8").read()
                tree = ast.parse(source)
            except (SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                    doc = ast.get_docstring(node)
                    if doc and 300 < len(doc) < 3000:
                        found.append((False, doc))
                if isinstance(node, ast.FunctionDef) and 6 <= (node.end_lineno - node.lineno) <= 60:
                    found.append((True, "\n".join(line[node.col_offset:] for line in source.split("\n")[node.lineno - 1 : node.end_lineno])))
    from pydoc_data import topics
    for text in topics.topics.values():
        for at in range(0, len(text), 2000):
            found.append((False, text[at : at + 2000]))
    return found


def main():
    model, seeds, out, *folders = sys.argv[1:]
    m = Llama(model, vocab_only=True, verbose=False)
    tok = lambda s: m.tokenize(s.encode(), add_bos=False, special=True)
    plain = lambda s: m.tokenize(s.encode(), add_bos=False, special=False)
    rng = random.Random(11)
    head = tok(f"<|im_start|>system\n{SYS}<|im_end|>\n<|im_start|>user\n")
    reply = tok("<|im_end|>\n<|im_start|>assistant\n")
    found = documents(folders)
    rng.shuffle(found)
    scripts = []
    for code, text in found[:9000]:
        body = plain(f"```python\n{text}\n```" if code else text)[: rng.randint(120, 520)]
        ask = plain(rng.choice(ON_CODE if code else ON_TEXT))
        scripts.append(head + (ask + plain("\n\n") + body if rng.random() < 0.6 else body + plain("\n\n") + ask) + reply)
    old = dict(np.load(seeds))
    n, w = old["scripts"].shape
    a = np.zeros((n + len(scripts), WIDTH), np.uint16)
    a[:n, :w] = old["scripts"]
    for i, s in enumerate(scripts):
        a[n + i, : len(s)] = s
    asks = [head + plain(t + "\n\n") for t in ON_TEXT]
    before = np.zeros((len(asks), 64), np.uint16)
    for i, s in enumerate(asks):
        before[i, : len(s)] = s
    old.update(scripts=a, lens=np.concatenate((old["lens"], [len(s) for s in scripts])).astype(np.int16),
        phase=np.concatenate((old["phase"], np.ones(len(scripts)))).astype(np.int8), long=np.arange(n, n + len(scripts)),
        asks=before, asks_len=np.array([len(s) for s in asks], np.int16), reply=np.array(reply))
    np.savez_compressed(out, **old)
    print(len(found), "documents;", len(scripts), "long scripts, longest", max(map(len, scripts)), "mean", np.mean([len(s) for s in scripts]), os.path.getsize(out), {k: v.shape for k, v in old.items()})


main()
