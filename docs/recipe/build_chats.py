"""Make the chat data from the facts and from our own texts.

    python build_chats.py --facts facts.jsonl --eval ../../benchmarks/prompts.jsonl --out chats.jsonl

Each line is {"messages": [...], "tools": [...] or absent, "cat": ...}.  A conversation
with a user turn that equals the last user turn of an evaluation prompt is left out.
"""

import argparse, json, random, re
import own_texts as T

R = random.Random(7)
pick = R.choice
OUT = []
SYS_PLAIN = [
    "You are a helpful assistant.",
    "You are a helpful assistant that knows Python.",
    "You are duo-tiny, a small assistant.",
    "You are a Python expert.",
    "You are a friendly tutor for Python beginners.",
    "Answer the user's questions.",
]


def sentences(t):
    return [s for s in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", t.strip()) if s]


def add(cat, turns, system=None, tools=None, style=True):
    """turns: user, assistant, user, assistant ..."""
    msgs = []
    turns = list(turns)
    if system is None and tools is None:
        r = R.random()
        if r < 0.16:
            system = pick(SYS_PLAIN)
        elif r < 0.30 and style:
            system, f = pick(STYLES)
            turns = [t if i % 2 == 0 else f(t) for i, t in enumerate(turns)]
    if system:
        msgs.append({"role": "system", "content": system})
    for i, t in enumerate(turns):
        if isinstance(t, dict):
            msgs.append(t)
        else:
            msgs.append({"role": "user" if i % 2 == 0 else "assistant", "content": t})
    d = {"cat": cat, "messages": msgs}
    if tools:
        d["tools"] = tools
    OUT.append(d)


def is_prose(t):
    return "```" not in t and "\n" not in t


def brief(t):
    return (
        sentences(t.split("\n\n")[0])[0]
        if not t.startswith("```") and "`" not in t[:1]
        else t.split("\n\n")[0]
    )


STYLES = []
for s in (
    "Answer briefly.",
    "Be concise.",
    "Answer in one sentence.",
    "Keep every answer as short as possible.",
    "You are a terse assistant. Use one sentence.",
):
    STYLES.append((s, brief))
for s in (
    "Begin every answer with a French greeting.",
    "Greet the user in French, then answer in English.",
    "Always start with Bonjour.",
):
    STYLES.append((s, lambda t: "Bonjour ! " + t if not t.startswith("```") else "Bonjour !\n\n" + t))
for s in ("Answer in all caps.", "Write everything in capital letters.", "ALWAYS ANSWER IN UPPER CASE."):
    STYLES.append((s, lambda t: t.upper() if is_prose(t) and len(t) < 260 else brief(t).upper()))
for s in (
    "Answer with bullet points.",
    "Always answer as a bullet list.",
    "Use bullet lists for your answers.",
):
    STYLES.append((s, lambda t: "\n".join("- " + x for x in sentences(t)) if is_prose(t) else t))
for w in ("Have a nice day.", "I hope this helps!", "Happy coding!"):
    STYLES.append((f"End every answer with: {w}", lambda t, w=w: t + ("\n\n" if "```" in t else " ") + w))
STYLES.append(
    (
        "Talk like a pirate.",
        lambda t: "Arr, matey! " + t if not t.startswith("```") else "Arr, matey!\n\n" + t,
    )
)


def code(c, lang="python"):
    return f"```{lang}\n{c}\n```"


def trim(paras, limit):
    out, n = [], 0
    for p in paras:
        if out and n + len(p) > limit:
            break
        out.append(p)
        n += len(p)
    if len(out) > 1 and out[-1].rstrip().endswith(":"):
        out.pop()
    return "\n\n".join(out)


# ------------------------------------------------------------- documentation
Q_WHAT = [
    "What does `{n}` do?",
    "What does {n} do?",
    "what does {n} do",
    "What is `{n}`?",
    "What is {n} for?",
    "Explain {n}.",
    "Explain `{n}` briefly.",
    "Tell me about {n}.",
    "Describe {n}.",
    "How does {n} work?",
    "What is the purpose of `{n}`?",
    "When would I use {n}?",
    "What's {n}?",
    "Can you explain `{n}`?",
    "I found {n} in some code. What is it?",
    "{n}?",
    "In Python, what does {n} do?",
    "Please describe what {n} does.",
    "Give me a short description of `{n}`.",
]
Q_LONG = [
    "Explain {n} in detail.",
    "Tell me everything about `{n}`.",
    "Describe `{n}` in detail.",
    "Give a full explanation of {n}.",
    "I need the details of {n}.",
    "Explain {n} with all its options.",
]
Q_SIG = [
    "What is the signature of {n}?",
    "How do I call {n}?",
    "Which arguments does `{n}` take?",
    "Show the signature of `{n}`.",
    "What parameters does {n} accept?",
]
Q_EX = [
    "Show an example of {n}.",
    "Give me an example of `{n}`.",
    "How do I use {n}? Show code.",
    "Can I see {n} in use?",
    "Example for {n}, please.",
]
F_SIG = [
    "What is its signature?",
    "How do I call it?",
    "Which arguments does it take?",
    "And the signature?",
    "What are its parameters?",
]
F_EX = [
    "Show an example.",
    "Can you give an example?",
    "Show me some code.",
    "And an example?",
    "How would that look in code?",
]
F_MORE = [
    "Tell me more.",
    "In more detail, please.",
    "Can you explain that in more detail?",
    "Go on.",
    "What else should I know about it?",
    "More details?",
]
F_SHORT = [
    "Say that again, shorter.",
    "Shorter, please.",
    "Summarize that in one sentence.",
    "Do that again, shorter.",
    "In one sentence?",
    "tl;dr",
]
F_MOD = [
    "Which module is it in?",
    "Where do I import it from?",
    "What do I have to import?",
    "Which module does it belong to?",
]
F_DEF = [
    "And its default?",
    "What is the default of `{p}`?",
    "And the default value of {p}?",
    "What does {p} default to?",
]


def q(tmpl, n, **k):
    t = pick(tmpl)
    return (t.replace("`{n}`", "{n}") if "`" in n or " " in n else t).format(n=n, **k)


def defaults(sig):
    m = re.search(r"\((.*)\)", sig.replace("[", "").replace("]", ""))
    return [(a, b) for a, b in re.findall(r"(\w+)=([^,()]+|\([^)]*\))", m.group(1))] if m else []


def api(d):
    mod, name = d["module"], d["name"]
    full = (
        name
        if not mod
        or name.startswith(mod + ".")
        or d["what"] in ("method", "attribute", "coroutinemethod", "property")
        and len(name) > 14
        else f"{mod}.{name}"
    )
    sig = (
        d["sig"]
        if not mod or d["sig"].startswith(mod + ".") or full == name
        else re.sub(re.escape(name.split(".")[-1]) + r".*", "", full)
        + d["sig"].split("(")[0].split(".")[-1]
        + ("(" + d["sig"].split("(", 1)[1] if "(" in d["sig"] else "")
    )
    sig = sig.replace("class ", "")
    first, callable_ = d["first"].rstrip(":").rstrip(), "(" in d["sig"]
    if len(first) > 380:
        first = " ".join(sentences(first)[:2])
    popular = mod in POPULAR or not mod
    what = {
        "function": "function",
        "method": "method",
        "class": "class",
        "exception": "exception",
        "data": "constant",
        "attribute": "attribute",
    }.get(d["what"], "function")
    n_rep = (40 if d["what"] in ("function", "class", "exception") or not mod else 16) if popular else 3

    def ans():
        r = R.random()
        if r < 0.55 or not callable_:
            return first
        if r < 0.8:
            return f"`{sig}`\n\n{first}"
        return f"`{full}` is a {what}{' of the `' + mod + '` module' if mod else ''}. {first}"

    sig_a = (
        f"The signature is:\n\n{code(sig)}"
        if callable_
        else f"`{full}` is {'an' if what[0] in 'aeiou' else 'a'} {what}, so it takes no arguments."
    )
    ex_a = d["example"]
    mod_a = (
        f"It is in the `{mod}` module:\n\n{code('import ' + mod)}"
        if mod
        else "It is built in, so nothing has to be imported."
    )
    long_a = trim(d["body"], 1500)
    dfl = defaults(d["sig"]) if callable_ else []
    for _ in range(n_rep):
        nm = (
            full
            if R.random() < 0.8 or not mod
            else (name + (f" in the {mod} module" if R.random() < 0.5 else f" from {mod}"))
        )
        r = R.random()
        if r < 0.4:
            add("stdlib", [q(Q_WHAT, nm), ans()])
        elif r < 0.5 and len(long_a) > len(first) + 80:
            add("stdlib", [q(Q_LONG, nm), long_a], style=False)
        elif r < 0.57 and callable_:
            add("stdlib", [q(Q_SIG, nm), sig_a], style=False)
        elif r < 0.67 and ex_a:
            add(
                "stdlib",
                [q(Q_EX, nm), pick(["", "Here is an example:\n\n", f"For example:\n\n"]) + ex_a],
                style=False,
            )
        elif r < 0.70:
            add(
                "json",
                [
                    pick(
                        [
                            f"Describe {full} as JSON with keys name, module and summary.",
                            f"Give name, module and summary of {full} as JSON.",
                            f"Answer as JSON with the keys name, module, summary: what is {full}?",
                        ]
                    ),
                    json.dumps(
                        {"name": name, "module": mod or "builtins", "summary": sentences(first)[0]},
                        ensure_ascii=False,
                    ),
                ],
                style=False,
            )
        else:
            turns = [q(Q_WHAT, nm), first]
            opts = [(F_MOD, mod_a)]
            if callable_:
                opts += [(F_SIG, sig_a)] * 2
            if ex_a:
                opts += [(F_EX, ex_a)] * 2
            if len(long_a) > len(first) + 80:
                rest = trim(d["body"][1:], 1000)
                opts.append((F_MORE, rest))
            if len(sentences(first)) > 1:
                opts.append((F_SHORT, sentences(first)[0]))
            if dfl:
                p, v = pick(dfl)
                opts.append(
                    (
                        [f.replace("{p}", p) for f in (F_DEF if len(dfl) == 1 else F_DEF[1:])],
                        f"`{p}` defaults to `{v}`.",
                    )
                )
            if d["since"]:
                opts.append(
                    (
                        [
                            "Since which version?",
                            "When was it added?",
                            "In which Python version was it added?",
                        ],
                        f"It was added in Python {d['since']}.",
                    )
                )
            R.shuffle(opts)
            seen = set()
            for qs, a in opts:
                if id(qs) in seen or a in turns:
                    continue
                seen.add(id(qs))
                turns += [pick(qs), a]
                if R.random() < 0.5:
                    break
            add("multi-turn", turns, style=False)


POPULAR = set(
    "os os.path sys re json math random time datetime collections itertools functools pathlib string subprocess threading asyncio logging csv sqlite3 argparse typing dataclasses enum heapq bisect copy shutil glob tempfile io pickle hashlib statistics decimal fractions operator contextlib concurrent.futures multiprocessing queue socket urllib.request urllib.parse unittest textwrap calendar uuid secrets abc inspect types struct zlib gzip zipfile tarfile html http.client http.server signal platform pprint timeit traceback warnings weakref array configparser".split()
)


def pkgapi(d):
    pkg, name = d["pkg"].replace("_", "-"), d["name"]
    s = d["summary"]
    where = pkg if pkg != "the standard library" else "the standard library"
    nm = pick([f"`{name}` in {where}", f"{name} in {where}", f"{where}'s {name}", f"`{name}` ({where})"])
    r = R.random()
    if r < 0.45:
        add("package", [q(Q_WHAT, nm), s])
    elif r < 0.6 and d["params"]:
        a = (
            s
            + "\n\nParameters:\n\n"
            + "\n".join(
                f"- `{p[0]}`"
                + (f" ({p[1]})" if p[1] and len(p[1]) < 40 else "")
                + f": {sentences(p[2])[0][:200]}"
                for p in d["params"]
            )
        )
        add("package", [q(Q_LONG, nm), a], style=False)
    elif r < 0.8 and d["example"]:
        add("package", [q(Q_EX, nm), code(d["example"])], style=False)
    else:
        turns = [q(Q_WHAT, nm), s]
        if d["example"] and R.random() < 0.7:
            turns += [pick(F_EX), code(d["example"])]
        elif d["params"]:
            p = pick(d["params"])
            turns += [
                pick([f"What is the parameter {p[0]}?", f"And `{p[0]}`?", f"What does {p[0]} mean?"]),
                sentences(p[2])[0],
            ]
        else:
            turns += [pick(F_SIG), code(d["sig"])]
        add("multi-turn", turns, style=False)


DO = [
    "Write a Python function that {t}.",
    "Write a function that {t}.",
    "Can you write a function that {t}?",
    "I need a Python function that {t}.",
    "Please write Python code that {t}.",
    "How do I write a function that {t}?",
    "Give me a function that {t}.",
    "Implement a function that {t}.",
    "write a python function that {t}",
    "Show me code that {t}.",
]


def lower1(s):
    s = s.rstrip(".")
    w = s.split(" ")[0]
    return (s[0].lower() + s[1:]) if w[1:].islower() or len(w) == 1 else s


def third(s):
    w, _, rest = s.partition(" ")
    lw = w.lower()
    if lw.endswith("s"):
        return lw + " " + rest
    if not lw.isalpha():
        return None
    return (
        (
            lw[:-1] + "ies"
            if lw.endswith("y") and lw[-2:-1] not in "aeiou"
            else lw + ("es" if lw.endswith(("ch", "sh", "x", "z", "o", "ss")) else "s")
        )
        + " "
        + rest
    )


VERBS = set(
    "return compute get find check convert create make build remove add parse read write split join test determine calculate count list load save format yield generate merge extract replace given print apply sort encode decode normalize validate iterate evaluate transform escape strip".split()
)


def func(d):
    s = d["summary"].rstrip(".")
    w = s.split(" ")[0].lower()
    src = d["source"]
    base = w[:-1] if w.endswith("s") and w[:-1] in VERBS else w
    for _ in range(2):
        r = R.random()
        if r < 0.5 and base in VERBS and len(s) < 140:
            t = third(lower1(s))
            if t:
                add("code", [q([x.replace("{t}", "{n}") for x in DO], t), code(src)], style=False)
        elif r < 0.8:
            lead = pick(
                [
                    "What does this function do?",
                    "Explain this function.",
                    "What does this code do?",
                    "Describe this function in one sentence.",
                    "Add a docstring for this code: what would it say?",
                ]
            )
            bare = re.sub(r'^(\s*)[rRuU]?("""|\'\'\').*?\2\n', "", src, count=1, flags=re.S | re.M)
            add("code", [f"{lead}\n\n{code(bare)}", s + "."], style=False)
        else:
            lines = src.split("\n")
            k = R.randint(max(2, len(lines) // 3), max(3, len(lines) * 2 // 3))
            add(
                "code",
                [
                    pick(["Complete this function:", "Finish this function:", "Complete the code:"])
                    + "\n\n"
                    + code("\n".join(lines[:k])),
                    code(src),
                ],
                style=False,
            )


# ------------------------------------------------------------- our own texts
Q_CONCEPT = [
    "What is a {n}?",
    "What is {n}?",
    "Explain {n}.",
    "Explain {n} in Python.",
    "What are {n}?",
    "Tell me about {n}.",
    "Tell me about {n} in Python.",
    "How do {n} work?",
    "What does {n} mean?",
    "Can you explain {n} to me?",
    "I don't understand {n}.",
    "Describe {n}.",
    "what is {n} in python",
    "Give me an introduction to {n}.",
    "Explain {n} with an example.",
    "Explain {n} to a beginner.",
    "Why would I use {n}?",
    "{n}?",
    "How is {n} used in Python?",
    "Teach me about {n}.",
]


def concepts():
    for name, aliases, short, detail, c, pit in T.CONCEPTS:
        lang = (
            "text"
            if c.startswith(("mypkg", "while not done", "tokens ="))
            else ("bash" if c.startswith("python -m") else "python")
        )
        for _ in range(170):
            n = pick([name] + aliases)
            forms = [
                f"{short} {detail}",
                f"{short} {detail}\n\n{code(c, lang)}",
                f"{short}\n\n{code(c, lang)}\n\n{detail}",
                f"{short} {detail}\n\nFor example:\n\n{code(c, lang)}\n\n{pit}",
                f"{short} {detail}\n\n{code(c, lang)}\n\nNote: {pit}",
            ]
            r = R.random()
            if r < 0.5:
                add("concept", [q(Q_CONCEPT, n), pick(forms)])
            elif r < 0.58:
                add(
                    "concept",
                    [
                        pick(
                            [
                                f"Define {n} in one sentence.",
                                f"What is {n}, in one sentence?",
                                f"{n} in one sentence",
                                f"Briefly, what is {n}?",
                            ]
                        ),
                        short,
                    ],
                )
            elif r < 0.66:
                add(
                    "concept",
                    [
                        pick(
                            [
                                f"Show an example of {n}.",
                                f"Give me an example of {n} in Python.",
                                f"Code example for {n}?",
                            ]
                        ),
                        code(c, lang),
                    ],
                    style=False,
                )
            elif r < 0.72:
                add(
                    "concept",
                    [
                        pick(
                            [
                                f"What should I watch out for with {n}?",
                                f"What is a common mistake with {n}?",
                                f"Any pitfalls with {n}?",
                            ]
                        ),
                        pit,
                    ],
                )
            elif r < 0.76:
                add(
                    "json",
                    [
                        pick(
                            [
                                f"Explain {n} as JSON with keys term and definition.",
                                f"Answer as JSON with keys term and definition: {n}",
                            ]
                        ),
                        json.dumps({"term": n, "definition": short}, ensure_ascii=False),
                    ],
                    style=False,
                )
            else:
                turns = [q(Q_CONCEPT, n), pick([f"{short} {detail}", short])]
                opts = [
                    (F_EX, code(c, lang)),
                    (F_SHORT, short),
                    (["What should I watch out for?", "Any pitfalls?", "What is a common mistake?"], pit),
                ]
                if turns[1] == short:
                    opts[1] = (F_MORE, detail)
                R.shuffle(opts)
                for qs, a in opts[: R.randint(1, 3)]:
                    turns += [pick(qs), a]
                add("multi-turn", turns, style=False)
    QD = [
        "What is the difference between {a} and {b}?",
        "What's the difference between {a} and {b} in Python?",
        "Explain the difference between {a} and {b}.",
        "{a} vs {b}?",
        "How do {a} and {b} differ?",
        "Compare {a} and {b}.",
        "When should I use {a} and when {b}?",
        "{a} or {b}?",
        "Illustrate the difference between {a} and {b} in Python.",
    ]
    for a, b, pa, pb, adv, c in T.DIFFS:
        for _ in range(110):
            x, y, px, py = (a, b, pa, pb) if R.random() < 0.7 else (b, a, pb, pa)
            if R.random() < 0.4:
                x, y = x.replace("`", ""), y.replace("`", "")
            forms = [
                f"{px} {py} {adv}",
                f"{px} {py}\n\n{code(c)}\n\n{adv}",
                f"{px}\n\n{py}\n\n{code(c)}",
                f"- {px}\n- {py}\n\n{adv}\n\n{code(c)}",
            ]
            if R.random() < 0.8:
                add("concept", [pick(QD).format(a=x, b=y), pick(forms)])
            else:
                add(
                    "multi-turn",
                    [
                        pick(QD).format(a=x, b=y),
                        f"{px} {py}",
                        pick(F_EX),
                        code(c),
                        pick(["Which should I use?", "So which one?", "And when do I use which?"]),
                        adv,
                    ],
                    style=False,
                )
    for i in range(1500):
        qn = pick(T.DEMO_QUESTIONS)
        if R.random() < 0.1:
            qn = qn.lower().rstrip(".?")
        a = pick(T.DEMO_ANSWERS)
        if i % 10 < 7:
            add("long-answer", [qn, a], style=False)
        else:
            add(
                "long-answer",
                [
                    qn,
                    a,
                    pick(
                        [
                            "Which one should I use for downloading many files?",
                            "What about downloads?",
                            "I want to download many pages. Which one?",
                        ]
                    ),
                    "Downloading is mostly waiting, so concurrency fits: use `asyncio` or a `ThreadPoolExecutor`.",
                ]
                if R.random() < 0.5
                else [
                    qn,
                    a,
                    pick(F_SHORT),
                    "Concurrency means that several tasks are in progress and take turns; parallelism means that they run at the same instant on several cores.",
                ],
                style=False,
            )
    for name, desc, c, why in T.TASKS:
        for _ in range(90):
            r = R.random()
            ask = q([x.replace("{t}", "{n}") for x in DO], desc)
            forms = [
                f"{code(c)}\n\n{why}",
                code(c),
                f"Here is a function that {desc}:\n\n{code(c)}\n\n{why}",
                f"{why}\n\n{code(c)}",
            ]
            if r < 0.6:
                add("code", [ask, pick(forms)], style=False)
            elif r < 0.75:
                add(
                    "code",
                    [
                        pick(["What does this code do?", "Explain this code.", "What does this function do?"])
                        + "\n\n"
                        + code(c),
                        f"It {desc}. {why}",
                    ],
                )
            elif r < 0.85:
                lines = c.split("\n")
                k = next((i for i, l in enumerate(lines) if l.startswith(("def ", "class "))), 0)
                add(
                    "code",
                    [
                        pick(["Complete this function:", "Finish this code:"])
                        + "\n\n"
                        + code("\n".join(lines[: k + 1])),
                        code(c),
                    ],
                    style=False,
                )
            else:
                add(
                    "multi-turn",
                    [
                        ask,
                        code(c),
                        pick(["How does it work?", "Explain it.", "Why does that work?"]),
                        why,
                        *(pick([[pick(["Thanks!", "Thank you"]), "You're welcome!"], []])),
                    ],
                    style=False,
                )
    for qs, ans in T.SMALLTALK:
        for _ in range(110):
            a = pick(ans)
            if R.random() < 0.75:
                add("smalltalk", [pick(qs), a])
            else:
                h, hs = T.SMALLTALK[0]
                add("smalltalk", [pick(h), pick(hs), pick(qs), a])


# ------------------------------------------------------------- skills
NAMES = "Ada Grace Alan Linus Guido Maria Tom Anna Ben Clara David Emma Felix Hanna Ivan Julia Karl Lena Max Nina Oscar Paul Rosa Sara Tim Uma Vera Walter Yara Zoe Omar Mei Ravi Chloe Noah Liam Sofia Lucas".split()
CITIES = "Paris London Berlin Rome Madrid Tokyo Oslo Vienna Lisbon Dublin Prague Athens Cairo Delhi Boston Chicago Toronto Sydney Lima Seoul Geneva Munich Lyon Milan Warsaw Helsinki Kyoto Denver Seattle Austin Mumbai Beijing Istanbul Nairobi".split()
WORDS = "apple river stone cloud green table music paper light garden window silver bridge forest coffee summer orange mirror pocket rocket flower castle button candle desert engine guitar hammer island jacket kitten ladder magnet needle ocean pencil rabbit sailor ticket valley winter yellow zebra banana cherry lemon grape melon peach plum".split()


def skills(n):
    sets = {
        "colors": "red, orange, yellow, green, blue, purple, black, white".split(", "),
        "fruits": "apple, banana, cherry, orange, pear, grape, lemon, peach".split(", "),
        "animals": "dog, cat, horse, cow, lion, tiger, bear, rabbit".split(", "),
        "programming languages": "Python, C, Java, Rust, Go, Ruby, JavaScript, Kotlin".split(", "),
        "Python data types": "int, float, str, list, dict, tuple, set, bool".split(", "),
        "standard library modules": "os, sys, re, json, math, random, datetime, collections".split(", "),
        "Python keywords": "if, for, while, def, class, return, import, try".split(", "),
        "built-in functions": "len, print, range, sorted, sum, min, max, open".split(", "),
        "planets": "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune".split(", "),
    }
    num = "zero one two three four five six seven eight nine ten".split()
    for _ in range(n):
        k = R.choice([0, 0, 0] + list(range(16)))
        if k == 0:
            a, b, op = R.randint(0, 99), R.randint(0, 99), pick("+-*+")
            if op == "*":
                a, b = R.randint(0, 12), R.randint(0, 12)
            v = eval(f"{a}{op}{b}")
            w = {"+": "plus", "-": "minus", "*": "times"}[op]
            o = pick([op, op if op != "*" else "x"])
            qn = pick(
                [
                    f"What is {a} {o} {b}?",
                    f"{a} {o} {b}",
                    f"{a}{op}{b}=?",
                    f"Compute {a} {o} {b}.",
                    f"What is {a} {w} {b}?",
                    f"Calculate {a} {w} {b}.",
                    f"how much is {a} {w} {b}",
                ]
            )
            add("skill", [qn, pick([f"{a} {op} {b} = {v}", f"{a} {op} {b} = {v}."])], style=False)
        elif k == 1:
            a = R.randint(0, 20)
            b = a + R.randint(3, 20)
            if R.random() < 0.6:
                add(
                    "skill",
                    [
                        pick(
                            [
                                f"Count from {a} to {b}.",
                                f"count from {a} to {b}",
                                f"List the numbers from {a} to {b}.",
                            ]
                        ),
                        ", ".join(map(str, range(a, b + 1))),
                    ],
                    style=False,
                )
            else:
                add(
                    "skill",
                    [
                        pick([f"Count down from {b} to {a}.", f"Count backwards from {b} to {a}."]),
                        ", ".join(map(str, range(b, a - 1, -1))),
                    ],
                    style=False,
                )
        elif k == 2:
            t, items = pick(list(sets.items()))
            m = R.randint(2, 6)
            c = R.sample(items, m)
            fm = pick(["comma", "bullet", "number"])
            a = (
                ", ".join(c)
                if fm == "comma"
                else "\n".join(("- " if fm == "bullet" else f"{i}. ") + x for i, x in enumerate(c, 1))
            )
            suf = {
                "comma": "",
                "bullet": pick([" as a bullet list", " as bullets"]),
                "number": pick([" as a numbered list", " in a numbered list"]),
            }[fm]
            add(
                "skill",
                [pick([f"List {num[m]} {t}{suf}.", f"Name {num[m]} {t}{suf}.", f"Give me {m} {t}{suf}."]), a],
                style=False,
            )
        elif k in (3, 4):
            w = [pick(WORDS + NAMES) for _ in range(R.randint(1, 9))]
            s = " ".join(w)
            if R.random() < 0.6:
                add(
                    "skill",
                    [
                        pick(
                            [
                                f"Repeat after me: {s}",
                                f"Repeat this: {s}",
                                f"Say: {s}",
                                f'Repeat "{s}".',
                                f"Please repeat the following text exactly: {s}",
                            ]
                        ),
                        s,
                    ],
                    style=False,
                )
            else:
                m = R.randint(2, 5)
                add(
                    "skill",
                    [
                        pick(
                            [
                                f"Say {w[0]} {num[m]} times.",
                                f"Write {w[0]} {m} times.",
                                f"Repeat the word {w[0]} {num[m]} times.",
                            ]
                        ),
                        " ".join([w[0]] * m),
                    ],
                    style=False,
                )
        elif k == 5:
            w = R.sample(WORDS, R.randint(3, 6))
            nums = R.sample(range(100), R.randint(3, 6))
            r = R.random()
            if r < 0.35:
                add(
                    "skill",
                    [
                        pick(
                            [
                                f"Sort these words: {', '.join(w)}",
                                f"Put these words in alphabetical order: {', '.join(w)}",
                            ]
                        ),
                        ", ".join(sorted(w)),
                    ],
                    style=False,
                )
            elif r < 0.7:
                add(
                    "skill",
                    [
                        pick(
                            [
                                f"Sort these numbers: {', '.join(map(str, nums))}",
                                f"Sort {', '.join(map(str, nums))}",
                            ]
                        ),
                        ", ".join(map(str, sorted(nums))),
                    ],
                    style=False,
                )
            elif r < 0.85:
                add(
                    "skill",
                    [f"Which is the largest: {', '.join(map(str, nums))}?", f"The largest is {max(nums)}."],
                    style=False,
                )
            else:
                add("skill", [f"Reverse this list: {', '.join(w)}", ", ".join(w[::-1])], style=False)
        elif k == 6:
            w = R.sample(WORDS, R.randint(2, 6))
            s = " ".join(w)
            r = R.randint(0, 4)
            qa = [
                (f"Write in upper case: {s}", s.upper()),
                (f"What is the first word of: {s}", w[0]),
                (f"What is the last word of: {s}", w[-1]),
                (f"How many words are in: {s}", f"There are {len(w)} words."),
                (
                    f"How many letters has the word {w[0]}?",
                    f"The word {w[0]} has {len(w[0])} letters: " + "-".join(w[0]) + ".",
                ),
            ][r]
            add("skill", list(qa), style=False)
        elif k == 7:
            nme, age, city = pick(NAMES), R.randint(5, 90), pick(CITIES)
            turns = [
                pick([f"My name is {nme}.", f"Hi, I'm {nme}.", f"Hello, my name is {nme}."]),
                pick([f"Hello {nme}! How can I help you?", f"Nice to meet you, {nme}!"]),
            ]
            if R.random() < 0.5:
                turns += [
                    pick([f"I live in {city}.", f"I am from {city}."]),
                    f"{city} is a nice city. What would you like to know?",
                ]
                ex = (pick(["Where do I live?", "Which city am I from?"]), f"You are from {city}.")
            else:
                turns += [f"I am {age} years old.", "Good to know! What would you like to talk about?"]
                ex = (pick(["How old am I?", "What is my age?"]), f"You are {age} years old.")
            if R.random() < 0.4:
                c = pick(T.CONCEPTS)
                turns += [f"What is {c[1][0] if c[1] else c[0]}?", c[2]]
            turns += (
                [pick(["What is my name?", "Do you remember my name?", "Who am I?"]), f"Your name is {nme}."]
                if R.random() < 0.6
                else list(ex)
            )
            add("multi-turn", turns, style=False)
        elif k in (8, 9):
            nme, age, city = pick(NAMES), R.randint(5, 90), pick(CITIES)
            s = pick(
                [
                    f"{nme} is {age} years old and lives in {city}.",
                    f"{nme}, {age}, from {city}.",
                    f"My friend {nme} from {city} is {age}.",
                    f"{nme} lives in {city}. Age: {age}.",
                ]
            )
            keys = pick(
                [
                    ["name", "age"],
                    ["name", "age", "city"],
                    ["name", "city"],
                    ["city", "name"],
                    ["age", "city"],
                ]
            )
            v = {"name": nme, "age": age, "city": city}
            ks = ", ".join(keys[:-1]) + " and " + keys[-1]
            js = {x: v[x] for x in keys}
            a = json.dumps(js, indent=2) if R.random() < 0.2 else json.dumps(js)
            add(
                "json",
                [
                    pick(
                        [
                            f"Extract {ks} as JSON: {s}",
                            f"Answer as JSON with keys {ks}. {s}",
                            f"{s} Return {ks} as a JSON object.",
                            f"Turn this into JSON with the keys {ks}: {s}",
                        ]
                    ),
                    a,
                ],
                system=pick([None, "You answer only with JSON.", "Reply with valid JSON only."]),
                style=False,
            )
        elif k == 10:
            f = pick(
                [
                    "os.path.join",
                    "print",
                    "math.sqrt",
                    "len",
                    "max",
                    "open",
                    "sorted",
                    "range",
                    "sum",
                    "min",
                    "pow",
                    "round",
                    "abs",
                    "str",
                    "int",
                ]
            )
            args = [pick([R.randint(0, 99), pick(WORDS)]) for _ in range(R.randint(1, 3))]
            sh = " and ".join(map(str, args)) if len(args) < 3 else f"{args[0]}, {args[1]} and {args[2]}"
            add(
                "json",
                [
                    pick(
                        [
                            f"Answer as JSON with keys name and args: call {f} with {sh}.",
                            f"Call {f} with {sh}. Answer as JSON with keys name and args.",
                            f"Write the call of {f} with {sh} as JSON with name and args.",
                        ]
                    ),
                    json.dumps({"name": f, "args": args}),
                ],
                style=False,
            )
        elif k == 11:
            t, items = pick(list(sets.items()))
            m = R.randint(2, 5)
            c = R.sample(items, m)
            key = t.split(" ")[-1]
            add(
                "json",
                [
                    pick([f"List {num[m]} {t} as a JSON array.", f"Give me {m} {t} as JSON array."]),
                    json.dumps(c),
                ]
                if R.random() < 0.5
                else [f"List {num[m]} {t} as JSON with the key {key}.", json.dumps({key: c})],
                style=False,
            )
        elif k == 12:
            days = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
            months = "January February March April May June July August September October November December".split()
            seq, what = pick([(days, "day"), (months, "month")])
            i = R.randrange(len(seq))
            add(
                "skill",
                list(
                    pick(
                        [
                            (
                                f"Which {what} comes after {seq[i]}?",
                                f"After {seq[i]} comes {seq[(i + 1) % len(seq)]}.",
                            ),
                            (f"Which {what} comes before {seq[i]}?", f"Before {seq[i]} comes {seq[i - 1]}."),
                            (
                                f"List the {what}s{' of the week' if what == 'day' else ' of the year'}.",
                                ", ".join(seq) + ".",
                            ),
                        ]
                    )
                ),
                style=False,
            )
        elif k == 13:
            nme = pick(NAMES)
            who = pick(["a helpful assistant", "a Python tutor", "a robot", "a friendly assistant"])
            add(
                "smalltalk",
                [
                    pick(["Who are you?", "What is your name?", "Introduce yourself."]),
                    pick([f"I am {nme}, {who}.", f"My name is {nme}. I am {who}."]),
                ],
                system=f"You are {nme}, {who}.",
                style=False,
            )
        elif k == 14:
            a, b = R.randint(1, 40), R.randint(1, 40)
            v = pick(["x", "a", "n", "total", "value"])
            op = pick(["+", "-", "*"]) if a < 13 and b < 13 else pick(["+", "-"])
            add(
                "code",
                [
                    pick(
                        ["What does this print?", "What is the output of this code?", "What will this print?"]
                    )
                    + "\n\n"
                    + code(f"{v} = {a}\nprint({v} {op} {b})"),
                    f"It prints `{eval(f'{a}{op}{b}')}`.",
                ],
                style=False,
            )
        else:
            w = R.sample(WORDS, 4)
            i = R.randrange(4)
            add(
                "code",
                [
                    pick(["What does this print?", "What is the output?"])
                    + "\n\n"
                    + code(f"items = {w!r}\nprint(items[{i}])"),
                    f"It prints `{w[i]}`, the item at index {i}.",
                ],
                style=False,
            )


ERR = [
    (
        "NameError: name '{v}' is not defined",
        "The name `{v}` is used before it is defined, or it is misspelled. Define it first or correct the spelling.",
    ),
    (
        "ModuleNotFoundError: No module named '{v}'",
        "Python cannot find a module called `{v}`. Install it with `python -m pip install {v}`, or check the spelling.",
    ),
    ("KeyError: '{v}'", "The dictionary has no key `'{v}'`. Use `d.get('{v}')` or check with `in` first."),
    (
        "IndexError: list index out of range",
        "The index is larger than the last index of the list. The last index is `len(items) - 1`.",
    ),
    (
        'TypeError: can only concatenate str (not "int") to str',
        "You are joining a string and an integer. Convert the number with `str()`, or use an f-string.",
    ),
    ("ZeroDivisionError: division by zero", "The divisor is zero. Check it before dividing."),
    (
        "AttributeError: 'NoneType' object has no attribute '{v}'",
        "The object is `None`, so it has no attribute `{v}`. Often a function returned nothing where you expected a value.",
    ),
    (
        "ValueError: invalid literal for int() with base 10: '{v}'",
        "The text `'{v}'` is not a number, so `int()` cannot convert it. Check the input or catch `ValueError`.",
    ),
    (
        "IndentationError: expected an indented block",
        "A block such as the body of `if` or `def` must be indented, usually by four spaces.",
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '{v}.txt'",
        "The file `{v}.txt` does not exist in the current directory. Check the path and the spelling.",
    ),
    (
        "RecursionError: maximum recursion depth exceeded",
        "A function calls itself too often, usually because a base case is missing.",
    ),
    (
        "UnboundLocalError: cannot access local variable '{v}'",
        "`{v}` is assigned in the function, so it is local there, but it is read before the assignment. Assign it first, or declare it `global`.",
    ),
    (
        "SyntaxError: invalid syntax",
        "Python could not parse the line. Look for a missing colon, quote or parenthesis, also in the line before.",
    ),
]


def errors(n):
    for _ in range(n):
        e, a = pick(ERR)
        v = pick(WORDS + ["data", "config", "user", "result", "numpy", "items", "count"])
        e, a = e.replace("{v}", v), a.replace("{v}", v)
        add(
            "concept",
            [
                pick(
                    [
                        "What does this error mean?\n\n{e}",
                        "I get {e}. Why?",
                        "How do I fix {e}?",
                        "{e}",
                        "Why do I get this error: {e}",
                        "My program stops with {e}",
                    ]
                ).replace("{e}", e),
                a,
            ],
        )


# ------------------------------------------------------------- tools
def P(**props):
    return {
        "type": "object",
        "properties": {
            k: {"type": v[0], "description": v[1]} | ({"enum": v[2]} if len(v) > 2 else {})
            for k, v in props.items()
            if k != "_req"
        },
        "required": props.get("_req", [k for k in props if k != "_req"]),
    }


def tool_defs():
    return [
        (
            "get_weather",
            "Get the current weather for a city",
            P(city=("string", "The city name")),
            lambda: {"city": pick(CITIES)},
            [
                "What is the weather in {city}?",
                "How is the weather in {city} today?",
                "Is it raining in {city}?",
                "weather in {city}",
                "Tell me the weather for {city}.",
            ],
            lambda a: {
                "city": a["city"],
                "temperature": R.randint(-5, 35),
                "condition": pick(["sunny", "cloudy", "rainy", "windy", "snowy"]),
            },
            lambda a, r: f"It is {r['condition']} in {a['city']} with {r['temperature']} degrees.",
        ),
        (
            "get_current_weather",
            "Get the current weather in a given location",
            P(
                location=("string", "The city and country"),
                unit=("string", "Temperature unit", ["celsius", "fahrenheit"]),
                _req=["location"],
            ),
            lambda: {"location": pick(CITIES)},
            [
                "What is the weather in {location}?",
                "What's the weather like in {location}?",
                "How warm is it in {location}?",
                "Weather for {location} please",
            ],
            lambda a: {
                "temperature": R.randint(-5, 35),
                "condition": pick(["sunny", "cloudy", "rainy", "foggy"]),
            },
            lambda a, r: f"The weather in {a['location']} is {r['condition']}, {r['temperature']} degrees.",
        ),
        (
            "get_time",
            "Get the current time in a city",
            P(city=("string", "The city name")),
            lambda: {"city": pick(CITIES)},
            ["What time is it in {city}?", "Tell me the time in {city}.", "current time in {city}?"],
            lambda a: {"time": f"{R.randint(0, 23):02d}:{R.randint(0, 59):02d}"},
            lambda a, r: f"It is {r['time']} in {a['city']}.",
        ),
        (
            "calculator",
            "Evaluate an arithmetic expression",
            P(expression=("string", "The expression to evaluate")),
            lambda: {"expression": f"{R.randint(2, 999)} {pick('+-*/')} {R.randint(2, 999)}"},
            [
                "What is {expression}?",
                "Calculate {expression}.",
                "Compute {expression}",
                "How much is {expression}?",
            ],
            lambda a: {"result": round(eval(a["expression"]), 2)},
            lambda a, r: f"{a['expression']} = {r['result']}.",
        ),
        (
            "search_docs",
            "Search the Python documentation",
            P(query=("string", "What to search for")),
            lambda: {
                "query": pick(
                    [
                        "os.path.join",
                        "list comprehension",
                        "asyncio.gather",
                        "json.dumps",
                        "dataclasses",
                        "re.sub",
                        "context managers",
                        "pathlib.Path",
                        "threading.Lock",
                        "itertools.chain",
                    ]
                )
            },
            [
                "Search the docs for {query}.",
                "Look up {query} in the documentation.",
                "Find {query} in the Python docs.",
                "What do the docs say about {query}?",
            ],
            lambda a: {
                "title": a["query"],
                "text": pick(
                    [
                        "Join one or more path segments.",
                        "Run awaitable objects concurrently.",
                        "A concise way to create lists.",
                        "Serialize an object to a string.",
                        "Return an iterator over all items.",
                    ]
                ),
            },
            lambda a, r: f"The documentation says about {a['query']}: {r['text']}",
        ),
        (
            "send_email",
            "Send an email",
            P(to=("string", "Recipient"), subject=("string", "Subject line")),
            lambda: {
                "to": pick(NAMES).lower() + "@example.com",
                "subject": pick(["Meeting", "Report", "Hello", "Invoice", "Lunch", "Update"]),
            },
            [
                "Send an email to {to} with the subject {subject}.",
                "Email {to}, subject {subject}.",
                "Write a mail to {to} about {subject}.",
            ],
            lambda a: {"status": "sent"},
            lambda a, r: f"The email to {a['to']} was sent.",
        ),
        (
            "translate",
            "Translate text into another language",
            P(text=("string", "The text"), language=("string", "The target language")),
            lambda: {
                "text": " ".join(R.sample(WORDS, R.randint(1, 3))),
                "language": pick(["French", "German", "Spanish", "Italian"]),
            },
            [
                "Translate {text} into {language}.",
                "How do you say {text} in {language}?",
                "What is {text} in {language}?",
            ],
            lambda a: {
                "translation": pick(["rivière verte", "grüner Fluss", "mesa", "Wolke", "maison", "jardin"])
            },
            lambda a, r: f"In {a['language']} it is: {r['translation']}.",
        ),
        (
            "get_stock_price",
            "Get the latest price of a stock",
            P(symbol=("string", "The stock symbol")),
            lambda: {"symbol": pick(["AAPL", "MSFT", "GOOG", "AMZN", "NVDA", "TSLA", "IBM"])},
            ["What is the price of {symbol}?", "How much is {symbol} trading at?", "stock price of {symbol}"],
            lambda a: {"price": round(R.uniform(10, 900), 2)},
            lambda a, r: f"{a['symbol']} trades at {r['price']}.",
        ),
        (
            "set_timer",
            "Set a timer",
            P(minutes=("integer", "Duration in minutes")),
            lambda: {"minutes": R.randint(1, 90)},
            [
                "Set a timer for {minutes} minutes.",
                "Remind me in {minutes} minutes.",
                "timer {minutes} minutes",
            ],
            lambda a: {"status": "ok"},
            lambda a, r: f"The timer is set for {a['minutes']} minutes.",
        ),
        (
            "read_file",
            "Read a text file",
            P(path=("string", "Path of the file")),
            lambda: {
                "path": pick(
                    ["notes.txt", "README.md", "data/config.json", "main.py", "todo.txt", "src/app.py"]
                )
            },
            ["Read the file {path}.", "Open {path}.", "What is in {path}?", "Show me {path}."],
            lambda a: {"content": " ".join(R.sample(WORDS, 4))},
            lambda a, r: f"The file {a['path']} contains: {r['content']}",
        ),
        (
            "run_python",
            "Run Python code and return its output",
            P(code=("string", "The code to run")),
            lambda: {"code": f"print({R.randint(1, 99)} {pick('+-*')} {R.randint(1, 99)})"},
            ["Run this code: {code}", "Execute {code}", "What does {code} print? Run it."],
            lambda a: {"output": str(eval(a["code"][6:-1]))},
            lambda a, r: f"The output is {r['output']}.",
        ),
        (
            "lookup_user",
            "Look up a user by name",
            P(name=("string", "Name of the user")),
            lambda: {"name": pick(NAMES)},
            ["Look up the user {name}.", "Find the account of {name}.", "Who is the user {name}?"],
            lambda a: {"name": a["name"], "email": a["name"].lower() + "@example.com"},
            lambda a, r: f"The user {a['name']} has the email address {r['email']}.",
        ),
        (
            "add",
            "Add two numbers",
            P(a=("number", "First number"), b=("number", "Second number")),
            lambda: {"a": R.randint(0, 500), "b": R.randint(0, 500)},
            ["Add {a} and {b}.", "What is {a} plus {b}?", "{a} + {b}?", "What is the sum of {a} and {b}?"],
            lambda a: {"result": a["a"] + a["b"]},
            lambda a, r: f"The sum of {a['a']} and {a['b']} is {r['result']}.",
        ),
        (
            "create_event",
            "Create a calendar event",
            P(title=("string", "Title"), day=("string", "Day of the week")),
            lambda: {
                "title": pick(["Lunch", "Meeting", "Dentist", "Review", "Call"]),
                "day": pick("Monday Tuesday Wednesday Thursday Friday".split()),
            },
            [
                "Create an event {title} on {day}.",
                "Put {title} in my calendar for {day}.",
                "Schedule {title} on {day}.",
            ],
            lambda a: {"status": "created"},
            lambda a, r: f"The event {a['title']} was created for {a['day']}.",
        ),
    ]


def tools(n):
    defs = tool_defs()
    for _ in range(n):
        chosen = R.sample(defs, pick([1, 1, 2, 2, 3, 4]))
        names = {c[0] for c in chosen}
        if {"get_weather", "get_current_weather"} <= names or {"calculator", "add"} <= names:
            continue
        specs = []
        for c in chosen:
            name = c[0]
            specs.append(
                {"type": "function", "function": {"name": name, "description": c[1], "parameters": c[2]}}
            )
        if R.random() < 0.5:  # many renderers sort the keys
            specs = json.loads(json.dumps(specs, sort_keys=True))
        r = R.random()
        turns = []
        if r < 0.2:  # no tool needed
            qs, ans = pick(T.SMALLTALK[:13]) if R.random() < 0.5 else (None, None)
            if qs:
                turns = [{"role": "user", "content": pick(qs)}, {"role": "assistant", "content": pick(ans)}]
            else:
                c = pick(T.CONCEPTS)
                turns = [
                    {"role": "user", "content": q(Q_CONCEPT, pick([c[0]] + c[1]))},
                    {"role": "assistant", "content": f"{c[2]} {c[3]}"},
                ]
        else:
            c = pick(chosen)
            a = c[3]()
            qn = pick(c[4]).format(**a)
            calls = [(c, a)]
            if r < 0.38:
                if R.random() < 0.6:
                    a2 = c[3]()
                    if len(a) == 1 and a2 != a:
                        k = list(a)[0]
                        qn = pick(c[4]).format(**{k: f"{a[k]} and {a2[k]}"})
                        calls.append((c, a2))
                elif len(chosen) > 1:
                    c2 = pick([x for x in chosen if x is not c])
                    a2 = c2[3]()
                    qn = qn.rstrip(".?") + pick([", and ", "? And ", ". Also: "]) + pick(c2[4]).format(**a2)
                    calls.append((c2, a2))
            turns = [
                {"role": "user", "content": qn},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"type": "function", "function": {"name": x[0], "arguments": y}} for x, y in calls
                    ],
                },
            ]
            if R.random() < 0.6:
                res = [x[5](y) for x, y in calls]
                for (x, y), z in zip(calls, res):
                    if R.random() < 0.2 and len(z) == 1:
                        turns.append({"role": "tool", "content": str(list(z.values())[0])})
                    else:
                        turns.append({"role": "tool", "content": json.dumps(z, ensure_ascii=False)})
                turns.append(
                    {"role": "assistant", "content": " ".join(x[6](y, z) for (x, y), z in zip(calls, res))}
                )
                if R.random() < 0.25:
                    turns += [
                        {"role": "user", "content": pick(["Thanks!", "Thank you"])},
                        {"role": "assistant", "content": "You're welcome!"},
                    ]
        msgs = ([{"role": "system", "content": pick(SYS_PLAIN)}] if R.random() < 0.4 else []) + turns
        OUT.append({"cat": "tools", "messages": msgs, "tools": specs})


def norm(s):
    return re.sub(r"\W+", " ", s.lower()).strip()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--facts"), ap.add_argument("--eval"), ap.add_argument("--out")
    a = ap.parse_args()
    facts = [json.loads(l) for l in open(a.facts)]
    for d in facts:
        k = d["kind"]
        if k == "api":
            api(d)
        elif k == "pkgapi":
            if R.random() < 0.4:
                pkgapi(d)
        elif k == "func":
            func(d)
        elif k == "module":
            b = trim(d["body"], 900)
            for _ in range(10):
                n = pick([f"the {d['name']} module", f"`{d['name']}`", f"the module {d['name']}", d["name"]])
                r = R.random()
                syn = f"The `{d['name']}` module: {d['synopsis'].rstrip('.')}."
                if r < 0.4:
                    add("stdlib", [q(Q_WHAT, n), pick([syn, syn + " " + d["body"][0] if d["body"] else syn])])
                elif r < 0.8 and b:
                    add("stdlib", [q(Q_WHAT + Q_LONG, n), b], style=False)
                else:
                    add(
                        "stdlib",
                        [
                            pick(
                                [
                                    f"Which module is for this: {d['synopsis'].rstrip('.').lower()}?",
                                    f"Which module of the standard library do I need for {d['synopsis'].rstrip('.').lower()}?",
                                ]
                            ),
                            f"Use the `{d['name']}` module.",
                        ],
                    )
        elif k == "term":
            for _ in range(12):
                b = trim(d["body"], pick([400, 1200]))
                add(
                    "concept",
                    [q(Q_CONCEPT, pick([d["name"], f"the term {d['name']}", f"`{d['name']}`"])), b],
                    style=R.random() < 0.5,
                )
        elif k == "qa":
            for _ in range(8):
                b = trim(d["a"], pick([700, 1600]))
                qn = (
                    d["q"]
                    if R.random() < 0.6
                    else pick(
                        [
                            d["q"].replace("`", ""),
                            d["q"].lower().rstrip("?"),
                            "Question: " + d["q"],
                            d["q"].rstrip("?") + " in Python?",
                        ]
                    )
                )
                add("concept", [qn, b], style=False)
        elif k == "section":
            for _ in range(3 if d["area"] in ("tutorial", "howto", "reference") else 1):
                t = d["title"]
                b = [x for x in d["body"] if not x.startswith("**Source")]
                add(
                    "long-answer",
                    [
                        pick(
                            [
                                f"Explain {t} ({d['doc']}).",
                                f"Tell me about {t} in the context of {d['doc']}.",
                                f"What does the {d['area']} say about {t}?",
                                f"Write about: {t} ({d['doc']})",
                                f"Explain in detail: {t}",
                            ]
                        ),
                        trim(b, 1800),
                    ],
                    style=False,
                )
    concepts()
    skills(52000)
    errors(2500)
    tools(18000)
    held = {
        norm([m for m in json.loads(l)["messages"] if m["role"] == "user"][-1]["content"])
        for l in open(a.eval)
        if json.loads(l)["category"] != "multi-turn"
    }
    held_multi = set()
    for l in open(a.eval):
        d = json.loads(l)
        us = [norm(m["content"]) for m in d["messages"] if m["role"] == "user"]
        if d["category"] == "multi-turn":
            held_multi.add(tuple(us))
    kept, dropped, cats = [], 0, {}
    for d in OUT:
        us = tuple(norm(m["content"]) for m in d["messages"] if m["role"] == "user")
        if any(u in held for u in us) or any(us[: len(h)] == h for h in held_multi):
            dropped += 1
            continue
        kept.append(d)
        cats[d["cat"]] = cats.get(d["cat"], 0) + 1
    R.shuffle(kept)
    with open(a.out, "w") as f:
        for d in kept:
            f.write(json.dumps(d, ensure_ascii=False) + "\n")
    print(len(kept), "chats,", dropped, "held out", cats)


if __name__ == "__main__":
    main()
