"""Packed conversations on the device: rows begin with a conversation and go on with the next ones."""
import numpy as np, torch


class Data:
    def __init__(self, paths, dev, held=0.01):
        toks, marks, idx, at = [], [], [], 0
        for p in paths:
            toks.append(np.load(p + ".tok.npy")), marks.append(np.load(p + ".mark.npy")), idx.append(np.load(p + ".idx.npy") + at)
            at += len(toks[-1])
        tok, mark, idx = np.concatenate(toks), np.concatenate(marks), np.concatenate(idx)
        self.dev = dev
        self.tok = torch.from_numpy(tok.astype(np.int32)).to(dev)
        self.mark = torch.from_numpy(mark).to(dev)
        idx = torch.from_numpy(idx).to(dev)
        cut = int(len(tok) * (1 - held))                   # the last conversations are held out
        self.split = {"train": (idx[idx < cut], cut), "val": (idx[idx >= cut], len(tok))}
        self.order, self.next = None, 0
        print(f"{len(idx)} conversations, {len(tok)/1e6:.2f}M tokens, {int((mark == 1).sum())/1e6:.2f}M of the assistant; "
              f"held out {len(tok) - cut} tokens", flush=True)

    def rows(self, split, n, T, g):
        starts, end = self.split[split]
        starts = starts[starts < end - T - 1]
        if split == "train":                               # every conversation begins a row once in a while
            if self.order is None or self.next + n > len(self.order):
                self.order, self.next = torch.randperm(len(starts), device=self.dev, generator=g), 0
            j = self.order[self.next : self.next + n] % len(starts)
            self.next += n
        else:
            j = torch.randint(0, len(starts), (n,), device=self.dev, generator=g)
        at = starts[j][:, None] + torch.arange(T + 1, device=self.dev)
        w = self.tok[at].long()
        m = self.mark[at[:, 1:]]
        weight = torch.where(m == 1, 1.0, torch.where(m == 2, 0.1, 0.0))
        return w[:, :-1], w[:, 1:], weight
