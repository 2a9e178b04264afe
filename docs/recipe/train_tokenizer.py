"""Train the byte-level BPE tokenizer shared by target and draft.

    python train_tokenizer.py --corpus corpus.jsonl --facts facts.jsonl --out tokenizer.json

The pre-tokenizer is the regex that llama.cpp knows as "qwen2" (digits one by one).
"""

import argparse, json, random
from tokenizers import Tokenizer, Regex, models, pre_tokenizers, decoders, trainers

PATTERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus"), ap.add_argument("--facts"), ap.add_argument("--out")
    ap.add_argument("--vocab", type=int, default=8192)
    a = ap.parse_args()
    rnd = random.Random(0)

    def texts():
        for l in open(a.corpus):
            d = json.loads(l)
            doc = d["src"].endswith("-doc") or d["src"] == "stdlib"
            if doc or rnd.random() < 0.12:
                yield d["text"]
        for l in open(a.facts):
            d = json.loads(l)
            # stands for the chats: prose with Markdown and code
            for k in ("summary", "first", "source", "example"):
                if isinstance(d.get(k), str):
                    yield d[k]
            for k in ("body", "a"):
                if d.get(k):
                    yield "\n\n".join(d[k])

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=a.vocab,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=20,
        show_progress=False,
    )
    tok.train_from_iterator(texts(), trainer)
    tok.save(a.out)
    print(tok.get_vocab_size())


if __name__ == "__main__":
    main()
