"""Extract facts for the chat data from documentation and docstrings.

    python facts.py --pydocs .../html/_sources --stdlib Lib --wheels DIR --out facts.jsonl

Writes JSON lines of these kinds:
  api      {"kind","module","name","sig","what","first","body","example","since"}
  module   {"kind","name","synopsis","body"}
  term     {"kind","name","body"}                    glossary
  qa       {"kind","q","a"}                          FAQ entries
  section  {"kind","title","doc","body"}             tutorial, HOWTO and reference sections
  func     {"kind","pkg","name","summary","source"}  short, self-contained functions
  pkgapi   {"kind","pkg","name","sig","summary","params","returns","example"}
"""

import argparse, ast, builtins, json, os, re, sys, textwrap

ROLE = re.compile(r":(?:[a-z]+:)?([a-zA-Z-]+):`([^`]+)`")


def inline(s):
    """reStructuredText inline markup to Markdown."""

    def role(m):
        kind, t = m.group(1), m.group(2)
        explicit = re.match(r"(.+?)\s*<[^>]+>$", t, re.S)
        label = explicit.group(1) if explicit else t
        label = re.sub(r"\s+", " ", label)
        if kind in (
            "ref",
            "term",
            "doc",
            "pep",
            "rfc",
            "dfn",
            "menuselection",
            "guilabel",
            "program",
            "issue",
            "bpo",
            "cve",
            "manpage",
            "abbr",
        ):
            return {"pep": "PEP ", "rfc": "RFC ", "issue": "issue "}.get(kind, "") + label
        label = label.lstrip("!")
        if label.startswith("~"):
            label = label[1:].split(".")[-1]
        if kind in ("func", "meth") and not explicit and not label.endswith(")"):
            label += "()"
        return "`" + label.lstrip(".") + "`"

    s = ROLE.sub(role, s)
    s = re.sub(r"``(.+?)``", lambda m: "`" + m.group(1) + "`", s, flags=re.S)
    s = re.sub(r"`([^`<]+?)\s*<[^>`]+>`_+", r"\1", s)  # external links
    s = re.sub(r"`([^`]+)`_+", r"\1", s)
    s = re.sub(r"(?<![\w*`])\*([A-Za-z_]\w*)\*(?![\w*])", r"`\1`", s)  # *param* -> `param`
    s = re.sub(r"\|([\w ]+)\|_?", r"\1", s)
    s = s.replace("\\ ", "").replace("\\*", "*").replace("\\_", "_").replace("\\\\", "\\")
    s = re.sub(r" --- ", " - ", s)
    return s


DIRECTIVE = re.compile(r"^(\s*)\.\. ([\w:+-]+)::\s*(.*)$")
KEEP_NOTE = {
    "note": "Note: ",
    "warning": "Warning: ",
    "caution": "Caution: ",
    "important": "Important: ",
    "tip": "Tip: ",
}
CODE = {"code-block", "code", "sourcecode", "doctest", "testcode", "highlight"}


def block_end(lines, i, indent):
    """First line after the block that is indented deeper than `indent`."""
    j = i
    while j < len(lines) and (not lines[j].strip() or len(lines[j]) - len(lines[j].lstrip()) > indent):
        j += 1
    return j


def render(lines):
    """A list of dedented rst lines to Markdown paragraphs (list of strings)."""
    out, para = [], []

    def flush():
        if para:
            t = " ".join(x.strip() for x in para)
            t = inline(re.sub(r"\s+", " ", t)).strip()
            if t:
                out.append(t)
            para.clear()

    i = 0
    while i < len(lines):
        l = lines[i]
        s = l.strip()
        ind = len(l) - len(l.lstrip())
        m = DIRECTIVE.match(l)
        if not s:
            flush()
            i += 1
            continue
        if m:
            flush()
            j = block_end(lines, i + 1, ind)
            body = textwrap.dedent("\n".join(lines[i + 1 : j])).split("\n")
            name = m.group(2)
            if name in KEEP_NOTE:
                sub = render([m.group(3)] + body)
                if sub:
                    sub[0] = KEEP_NOTE[name] + sub[0]
                    out.extend(sub)
            elif name in CODE and name != "highlight":
                body = [b for b in body if not re.match(r"\s*:\w[\w-]*:", b)]
                code = "\n".join(body).strip("\n")
                lang = m.group(3).strip().split(" ")[0] or "python"
                lang = {
                    "python3": "python",
                    "pycon": "python",
                    "pycon3": "python",
                    "none": "",
                    "text": "",
                }.get(lang, lang)
                if name in ("doctest", "testcode"):
                    lang = "python"
                if code:
                    out.append(f"```{lang}\n{textwrap.dedent(code)}\n```")
            i = j
            continue
        if s.startswith(".. ") or s == "..":
            flush()
            i = block_end(lines, i + 1, ind)
            continue
        if s.startswith(">>>"):
            flush()
            j = i
            while j < len(lines) and lines[j].strip():
                j += 1
            out.append("```python\n" + textwrap.dedent("\n".join(lines[i:j])) + "\n```")
            i = j
            continue
        b = re.match(r"^(\s*)([-*+]|#\.|\d+\.)\s+(.*)$", l)
        if b:
            flush()
            j = i + 1
            while (
                j < len(lines)
                and lines[j].strip()
                and len(lines[j]) - len(lines[j].lstrip()) > ind
                and not re.match(r"^\s*([-*+]|#\.|\d+\.)\s+", lines[j])
            ):
                j += 1
            t = " ".join([b.group(3)] + [x.strip() for x in lines[i + 1 : j]])
            item = "- " + inline(re.sub(r"\s+", " ", t)).strip()
            if out and out[-1].startswith("- "):
                out[-1] += "\n" + item
            else:
                out.append(item)
            i = j
            continue
        if re.match(r"^[=+-]{3,}[ =+-]*$", s) or s.startswith("|") or s.startswith("+-"):
            # tables are dropped
            while i < len(lines) and lines[i].strip():
                i += 1
            para.clear()
            continue
        para.append(l)
        i += 1
        if s.endswith("::"):
            j = i
            while j < len(lines) and not lines[j].strip():
                j += 1
            if j < len(lines) and len(lines[j]) - len(lines[j].lstrip()) > ind:
                k = block_end(lines, j, ind)
                para[-1] = para[-1].rstrip()[:-1] if s != "::" else ""
                flush()
                code = textwrap.dedent("\n".join(lines[j:k])).strip("\n")
                out.append(f"```python\n{code}\n```")
                i = k
            else:
                para[-1] = para[-1].rstrip()[:-1]
    flush()
    return [o for o in out if o.strip()]


API = {
    "function",
    "method",
    "class",
    "attribute",
    "data",
    "exception",
    "decorator",
    "staticmethod",
    "classmethod",
    "decoratormethod",
    "coroutinefunction",
    "coroutinemethod",
    "awaitablefunction",
    "property",
    "pdbcommand",
}


def parse_apis(lines, module, cls, emit, ind0=-1):
    i = 0
    while i < len(lines):
        m = DIRECTIVE.match(lines[i])
        if not m:
            i += 1
            continue
        ind, name, arg = len(m.group(1)), m.group(2).split(":")[-1], m.group(3).strip()
        if name in ("module", "currentmodule"):
            module[0] = arg
            cls = None
            i += 1
            continue
        if name not in API:
            i += 1
            continue
        j = block_end(lines, i + 1, ind)
        head, body = [arg], lines[i + 1 : j]
        # further signatures stand right below the first
        while (
            body
            and body[0].strip()
            and not body[0].strip().startswith(":")
            and not body[0].strip().startswith("..")
        ):
            head.append(body.pop(0).strip())
        body = [b for b in body if not re.match(r"^\s*:\w+:", b)]
        # nested directives apart
        own, k = [], 0
        while k < len(body):
            mm = DIRECTIVE.match(body[k])
            if mm and mm.group(2).split(":")[-1] in API:
                break
            own.append(body[k])
            k += 1
        paras = render(textwrap.dedent("\n".join(own)).split("\n"))
        since = re.search(r"\.\. versionadded:: ([\d.]+)", "\n".join(own))
        sig = head[0].split(" -> ")[0].strip()
        sig = re.sub(r"\\", "", sig)
        nm = re.match(r"(@?[\w.]+)", sig)
        if nm:
            qual = nm.group(1).lstrip("@")
            if (
                name
                in (
                    "method",
                    "attribute",
                    "staticmethod",
                    "classmethod",
                    "coroutinemethod",
                    "property",
                    "decoratormethod",
                )
                and "." not in qual
                and cls
            ):
                qual = f"{cls}.{qual}"
            emit(
                name,
                module[0],
                qual,
                [re.sub(r"\\", "", h) for h in head],
                paras,
                since.group(1) if since else None,
            )
            inner = qual if name in ("class", "exception") else cls
        else:
            inner = cls
        if k < len(body):
            parse_apis(body[k:], module, inner, emit, ind)
        i = j


def sections(text):
    """Split an rst document at its headings: (level char, title, lines)."""
    lines = text.split("\n")
    cur, title, lv = [], None, None
    for i, l in enumerate(lines):
        if (
            i + 1 < len(lines)
            and l.strip()
            and not l.startswith((" ", ".."))
            and re.match(r"^([=\-~^*#\"'+])\1{2,}\s*$", lines[i + 1])
            and len(lines[i + 1].strip()) >= len(l.strip()) - 3
        ):
            if title:
                yield lv, title, cur
            title, cur, lv = l.strip(), [], lines[i + 1][0]
        elif re.match(r"^([=\-~^*#\"'+])\1{2,}\s*$", l):
            continue
        else:
            cur.append(l)
    if title:
        yield lv, title, cur


def main():
    ap = argparse.ArgumentParser()
    for o in ("--pydocs", "--stdlib", "--wheels", "--out"):
        ap.add_argument(o, required=True)
    a = ap.parse_args()
    out = open(a.out, "w")
    counts, seen = {}, set()

    def put(d):
        key = (d["kind"], d.get("module"), d.get("pkg"), d.get("name") or d.get("q") or d.get("title"))
        if key in seen:
            return
        seen.add(key)
        counts[d["kind"]] = counts.get(d["kind"], 0) + 1
        out.write(json.dumps(d) + "\n")

    def emit(what, module, name, head, paras, since):
        text = [p for p in paras if not p.startswith("```")]
        if not text or len(text[0]) < 15 or text[0].startswith("- "):
            return
        example = next((p for p in paras if p.startswith("```")), None)
        if example and len(example) > 900:
            example = None
        put(
            dict(
                kind="api",
                module=module,
                name=name,
                sig=head[0],
                sigs=head,
                what=what,
                first=text[0],
                body=paras,
                example=example,
                since=since,
            )
        )

    for d, subs, files in sorted(os.walk(a.pydocs)):
        subs.sort()
        area = os.path.relpath(d, a.pydocs).split("/")[0]
        for f in sorted(files):
            if not f.endswith(".rst.txt") or area in (
                "c-api",
                "whatsnew",
                "distutils",
                "install",
                "installing",
                "distributing",
            ):
                continue
            text = open(os.path.join(d, f)).read()
            lines = text.split("\n")
            if area == "library":
                parse_apis(lines, [None], None, emit)
                m = re.search(r"^\.\. module:: (\S+)\n(?:\s+:.*\n)*?\s+:synopsis: (.*)$", text, re.M)
                if m:
                    secs = list(sections(text))
                    body = render(secs[0][2]) if secs else []
                    body = [b for b in body if not b.startswith("**Source") and not b.startswith("---")]
                    stop = next((k for k, l in enumerate(body) if "following" in l[:60]), len(body))
                    put(
                        dict(
                            kind="module",
                            name=m.group(1),
                            synopsis=inline(m.group(2)),
                            body=body[: max(1, stop)][:4],
                        )
                    )
            if f == "glossary.rst.txt":
                i = lines.index(".. glossary::")
                term, cur = None, []
                for l in lines[i + 1 :] + ["   end"]:
                    if re.match(r"^   \S", l):
                        if term and cur:
                            b = render(textwrap.dedent("\n".join(cur)).split("\n"))
                            if b:
                                put(dict(kind="term", name=inline(term).strip("`"), body=b))
                        term, cur = l.strip(), []
                    else:
                        cur.append(l)
                continue
            if area == "faq":
                for lv, title, ls in sections(text):
                    if title.endswith("?"):
                        b = render(ls)
                        if b:
                            put(dict(kind="qa", q=inline(title), a=b))
                continue
            if area in ("tutorial", "howto", "reference") or (area == "library"):
                doc = f.replace(".rst.txt", "")
                for lv, title, ls in sections(text):
                    if any(DIRECTIVE.match(x) and DIRECTIVE.match(x).group(2) in API for x in ls):
                        continue
                    b = render(ls)
                    if b and sum(map(len, b)) > 150 and len(title) < 70:
                        put(dict(kind="section", area=area, doc=doc, title=inline(title), body=b))

    # ---- docstrings and self-contained functions ----
    std = set(sys.stdlib_module_names)
    ok_builtin = set(dir(builtins))

    def free_names(fn):
        bound = set()
        for n in ast.walk(fn):
            if isinstance(n, ast.arg):
                bound.add(n.arg)
            elif isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                bound.add(n.id)
            elif isinstance(n, (ast.FunctionDef, ast.ClassDef)):
                bound.add(n.name)
            elif isinstance(n, (ast.Import, ast.ImportFrom)):
                for al in n.names:
                    bound.add((al.asname or al.name).split(".")[0])
            elif isinstance(n, ast.ExceptHandler) and n.name:
                bound.add(n.name)
        return {n.id for n in ast.walk(fn) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - bound

    def doc_parts(doc):
        doc = doc[:8000]
        doc = textwrap.dedent(doc.split("\n", 1)[0] + "\n") + textwrap.dedent(
            doc.split("\n", 1)[1] if "\n" in doc else ""
        )
        paras = re.split(r"\n\s*\n", doc.strip())
        summary = re.sub(r"\s+", " ", paras[0]).strip()
        params, returns, example = [], None, None
        lines = doc.split("\n")
        heads = [n for n in range(len(lines) - 1) if re.fullmatch(r"-{3,}", lines[n + 1].strip())]
        for h in heads:
            end = min([x for x in heads if x > h], default=len(lines))
            part = lines[h + 2 : end]
            if lines[h].strip() == "Parameters":
                n = 0
                while n < len(part):
                    if part[n].strip() and not part[n].startswith(" "):
                        pname, _, ptype = part[n].partition(":")
                        desc = []
                        n += 1
                        while n < len(part) and part[n].startswith(" ") and part[n].strip():
                            desc.append(part[n].strip())
                            n += 1
                        if desc and len(pname) < 40:
                            params.append([pname.strip(), ptype.strip(), inline(" ".join(desc))])
                    else:
                        n += 1
            elif lines[h].strip() == "Returns":
                returns = "\n".join(part).strip("\n")[:300]
        at = next((k for k, l in enumerate(lines) if l.lstrip().startswith(">>> ")), None)
        if at is not None:
            end = at
            while end < len(lines) and lines[end].strip():
                end += 1
            block = textwrap.dedent("\n".join(lines[at:end]))
            if len(block) < 700:
                example = block
        return summary, params, returns, example

    def module_imports(tree):
        names = {}
        for n in tree.body:
            if isinstance(n, ast.Import):
                for al in n.names:
                    if al.name.split(".")[0] in std:
                        names[(al.asname or al.name).split(".")[0]] = f"import {al.name}" + (
                            f" as {al.asname}" if al.asname else ""
                        )
            elif (
                isinstance(n, ast.ImportFrom)
                and n.module
                and n.level == 0
                and n.module.split(".")[0] in std
                and n.module != "__future__"
            ):
                for al in n.names:
                    names[al.asname or al.name] = f"from {n.module} import {al.name}" + (
                        f" as {al.asname}" if al.asname else ""
                    )
        return names

    def harvest(pkg, path):
        try:
            src = open(path, errors="ignore").read()
            tree = ast.parse(src)
        except (SyntaxError, ValueError):
            return
        imports = module_imports(tree)
        src_lines = src.split("\n")

        def visit(node, prefix):
            for n in node.body:
                if isinstance(n, ast.ClassDef) and not n.name.startswith("_") and not prefix:
                    doc = ast.get_docstring(n)
                    if doc:
                        s, p, r, e = doc_parts(doc)
                        if 20 < len(s) < 300 and s[0].isupper():
                            put(
                                dict(
                                    kind="pkgapi",
                                    pkg=pkg,
                                    name=n.name,
                                    what="class",
                                    sig=n.name,
                                    summary=inline(s),
                                    params=p[:6],
                                    returns=None,
                                    example=e,
                                )
                            )
                    visit(n, n.name + ".")
                elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    doc = ast.get_docstring(n)
                    if not doc:
                        continue
                    s, p, r, e = doc_parts(doc)
                    if not (15 < len(s) < 300) or not s[0].isupper() or s.isupper():
                        continue
                    if not n.name.startswith("_") and (e or p or not prefix):
                        try:
                            args = ast.unparse(n.args)
                        except Exception:
                            continue
                        if len(args) < 240:
                            put(
                                dict(
                                    kind="pkgapi",
                                    pkg=pkg,
                                    name=prefix + n.name,
                                    what="method" if prefix else "function",
                                    sig=f"{n.name}({args})",
                                    summary=inline(s),
                                    params=p[:6],
                                    returns=r,
                                    example=e,
                                )
                            )
                    seg = textwrap.dedent("\n".join(src_lines[n.lineno - 1 : n.end_lineno]))
                    if (
                        prefix
                        or not seg
                        or n.decorator_list
                        or not (3 <= seg.count("\n") <= 40)
                        or len(seg) > 1500
                        or n.name.startswith("__")
                    ):
                        continue
                    free = free_names(n) - ok_builtin
                    if free - set(imports) or any(
                        x in seg for x in ("raise NotImplementedError", "self.", "Deprecated", "deprecated")
                    ):
                        continue
                    if len(n.body) < 2:
                        continue
                    need = sorted(imports[f] for f in free)
                    code = ("\n".join(need) + "\n\n\n" if need else "") + seg
                    put(dict(kind="func", pkg=pkg, name=n.name, summary=inline(s), source=code))

        visit(tree, "")

    skip = re.compile(
        r"/(tests?|testing|_vendor|vendored?|lib2to3|idlelib|turtledemo|site-packages|typeshed)/"
    )
    for root, pkg in [(a.stdlib, "the standard library")] + [
        (os.path.join(a.wheels, w), w)
        for w in sorted(os.listdir(a.wheels))
        if w not in ("rope", "biopython", "transformers")
    ]:
        for d, subs, files in sorted(os.walk(root)):
            subs.sort()
            if skip.search(d[len(root) :] + "/"):
                continue
            for f in sorted(files):
                if f.endswith(".py") and not f.startswith("test_"):
                    harvest(pkg, os.path.join(d, f))
    out.close()
    print(counts, file=sys.stderr)


if __name__ == "__main__":
    main()
