"""Collect the pretraining text: CPython's documentation, the standard library,
the documentation and the sources of permissively licensed Python packages.

    python collect.py --wheels DIR --docs DIR --stdlib DIR --out corpus.jsonl

--wheels  a folder with one unpacked wheel per sub-folder
--docs    a folder with one unpacked documentation package per sub-folder (*.rst.txt)
--stdlib  the Lib folder of CPython 3.11

Each output line is {"src": ..., "path": ..., "text": ...}.  Tests, vendored code,
generated code and data tables are dropped, near-copies too.
"""

import argparse, hashlib, json, os, re, sys

SKIP_DIRS = re.compile(
    r"/(tests?|testing|_vendor|vendored?|externals?|extern|node_modules|static|locale|"
    r"site-packages|idlelib|lib2to3|turtledemo|pydoc_data|ensurepip|__pycache__|"
    r"migrations|mpl-data|sample_data|generated|_generated|autogen|typeshed)/",
    re.I,
)
SKIP_FILES = re.compile(
    r"(^|/)(test_[^/]*|[^/]*_test|conftest|setup|_version|version|lextab|yacctab|parsetab|"
    r"[^/]*_pb2|[^/]*_pb2_grpc|tables?|[^/]*_tables?|entities|emoji[^/]*|_emoji_codes|_cell_widths|"
    r"[^/]*_data|unicode[^/]*|_unicode[^/]*)\.py$",
    re.I,
)
SKIP_SOURCES = {"rope", "biopython", "python-celery-doc"}  # copyleft, or share-alike text
CAP = {"transformers": 3_000_000}
DEFAULT_CAP = 4_500_000


def looks_like_data(text):
    if len(text) < 200 or len(text) > 400_000:
        return True
    lines = text.split("\n")
    if len(text) / len(lines) > 100 or max(map(len, lines)) > 2000:
        return True
    digits = sum(c.isdigit() for c in text)
    alpha = sum(c.isalpha() for c in text)
    letters_ascii = sum(c.isascii() for c in text)
    return digits > 0.12 * len(text) or alpha < 0.35 * len(text) or letters_ascii < 0.97 * len(text)


def strip_header(text):
    """Remove a leading licence comment: it would be learned by heart."""
    lines = text.split("\n")
    i = 0
    while i < len(lines) and (lines[i].startswith("#") or not lines[i].strip()):
        i += 1
    head = "\n".join(lines[:i])
    if re.search(r"copyright|licen[sc]e|coding[:=]|^#!", head, re.I | re.M):
        lines = lines[i:]
    return "\n".join(lines).strip("\n") + "\n"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--wheels"), ap.add_argument("--docs"), ap.add_argument("--stdlib")
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    seen_files, seen_lines, totals = set(), set(), {}
    out = open(a.out, "w")

    def add(src, path, text):
        if totals.get(src, 0) > CAP.get(src, DEFAULT_CAP):
            return
        text = text.replace("\r\n", "\n").replace("\t", "    ").replace("\x0c", "")
        text = "\n".join(l.rstrip() for l in text.split("\n"))
        text = re.sub(r"\n{4,}", "\n\n\n", text)
        digest = hashlib.sha1(text.encode()).digest()
        if digest in seen_files or looks_like_data(text):
            return
        seen_files.add(digest)
        keys = [hash(l) for l in text.split("\n") if len(l.strip()) > 25]
        if keys and sum(k in seen_lines for k in keys) > 0.5 * len(keys):
            return
        seen_lines.update(keys)
        totals[src] = totals.get(src, 0) + len(text)
        out.write(json.dumps({"src": src, "path": path, "text": text}) + "\n")

    def walk(root, suffixes):
        for d, subs, files in sorted(os.walk(root)):
            subs.sort()
            for f in sorted(files):
                p = os.path.join(d, f)
                if (
                    f.endswith(suffixes)
                    and not SKIP_DIRS.search(p[len(root) :].rsplit("/", 1)[0] + "/")
                    and not SKIP_FILES.search(f)
                ):
                    yield p

    if a.docs:
        names = sorted(os.listdir(a.docs), key=lambda n: (n != "python3.11-doc", n))
        for n in names:
            if n in SKIP_SOURCES:
                continue
            root = os.path.join(a.docs, n)
            CAP.setdefault(n, 20_000_000 if n == "python3.11-doc" else 3_000_000)
            for p in walk(root, (".rst.txt",)):
                if "/whatsnew/" in p and not re.search(r"/3\.(9|10|11)\.rst", p) or "changelog" in p.lower():
                    continue
                add(n, p[len(root) :], open(p, errors="ignore").read())
    if a.stdlib:
        CAP["stdlib"] = 40_000_000
        for p in walk(a.stdlib, (".py",)):
            add("stdlib", p[len(a.stdlib) :], strip_header(open(p, errors="ignore").read()))
    if a.wheels:
        for n in sorted(os.listdir(a.wheels)):
            if n in SKIP_SOURCES:
                continue
            root = os.path.join(a.wheels, n)
            files = list(walk(root, (".py",)))

            # the richest in docstrings first, so that a cap keeps the better part
            def richness(p):
                t = open(p, errors="ignore").read()
                return -(sum(map(len, re.findall(r'"""(.*?)"""', t, re.S))) / (len(t) + 2000))

            if sum(os.path.getsize(p) for p in files) > DEFAULT_CAP:
                files.sort(key=richness)
            for p in files:
                add(n, p[len(root) :], strip_header(open(p, errors="ignore").read()))
    out.close()
    for k, v in sorted(totals.items(), key=lambda kv: -kv[1]):
        print(f"{k:28s} {v / 1e6:8.2f} MB", file=sys.stderr)
    print(f"total {sum(totals.values()) / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
