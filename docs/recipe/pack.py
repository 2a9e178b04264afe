"""Tokenize the corpus or the chats into flat arrays.

    python pack.py text  tokenizer.json corpus.jsonl OUT     -> OUT.train.bin OUT.val.bin
    python pack.py chats tokenizer.json chats.jsonl OUT      -> the same, plus OUT.train.idx OUT.val.idx

Tokens are uint16.  In chats bit 15 marks the tokens to be trained (the assistant's),
and the idx file holds the start of each conversation.  About 1 % is held out by hash.
"""

import hashlib, json, sys
import numpy as np
from tokenizers import Tokenizer
from chatml import segments


def main():
    kind, tokfile, src, out = sys.argv[1:]
    tok = Tokenizer.from_file(tokfile)
    eot = tok.token_to_id("<|endoftext|>")
    parts = {"train": [], "val": []}
    starts = {"train": [], "val": []}
    size = {"train": 0, "val": 0}

    def put(key, arr):
        split = "val" if hashlib.sha1(key.encode()).digest()[0] < 3 else "train"
        starts[split].append(size[split])
        parts[split].append(arr)
        size[split] += len(arr)

    def batches(n=512):
        b = []
        for l in open(src):
            b.append(json.loads(l))
            if len(b) == n:
                yield b
                b = []
        yield b

    for b in batches():
        if kind == "text":
            for d, e in zip(b, tok.encode_batch([d["text"] for d in b], add_special_tokens=False)):
                put(d["src"] + d["path"], np.array(e.ids + [eot], np.uint16))
        else:
            segs = [segments(d["messages"], d.get("tools")) for d in b]
            flat = tok.encode_batch([t for s in segs for t, _ in s], add_special_tokens=False)
            k = 0
            for d, s in zip(b, segs):
                ids = []
                for t, trained in s:
                    a = np.array(flat[k].ids, np.uint16)
                    k += 1
                    ids.append(a | 0x8000 if trained else a)
                put(json.dumps(d["messages"]), np.concatenate(ids + [np.array([eot], np.uint16)]))
    for split in parts:
        a = np.concatenate(parts[split])
        a.tofile(f"{out}.{split}.bin")
        if kind == "chats":
            np.array(starts[split], np.uint32).tofile(f"{out}.{split}.idx")
        print(split, len(parts[split]), "documents", len(a), "tokens", int((a >> 15).sum()), "trained")


if __name__ == "__main__":
    main()
