#!/usr/bin/env bash
# lm-eval 0.4.13 (EleutherAI's evaluation harness) with a server of Chat Completions, `local-chat-completions`, and with
# one of Completions, `local-completions`.
# Expected: a task's stop strings (`until`) end what the model writes, with both, since a server such as llama-server or
#           vLLM takes any number of them; and what is asked does not depend on `num_concurrent`.
# Seen:     of the stop strings the first four are sent to a server of Chat Completions, the others are dropped without
#           a word, and the text is not cut afterwards. HumanEval, which comes with lm-eval, has five: the `print` that
#           a model writes behind the function stays, is run with it, and fails the task where the model's test does.
#           `eos_string` is sent as a stop string with `num_concurrent=1` only, and not at all where there are four.
source "$(dirname "$0")/begin.sh"
from_pypi "lm-eval[api]==0.4.13" transformers==5.24.0 pyyaml==6.0.3
HF_HUB_OFFLINE=1 OPENAI_API_KEY=none python - 2>log <<'PY' || { tail log; exit 1; }
import http.server
import json
import threading
from importlib.metadata import distribution, version
from pathlib import Path

import yaml
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

WRITTEN = "    return a + b\n\nprint(add(1))\n"
asked = []


class Server(http.server.BaseHTTPRequestHandler):
    """Writes a function's body and a test of it, unless a stop string ends it."""

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked.append(question["stop"])
        text = WRITTEN
        for stop in question["stop"]:
            text = text.split(stop)[0]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "text": text, "finish_reason": "stop"}
        body = json.dumps({"id": "c", "model": "m", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}/v1"
task = Path(distribution("lm-eval").locate_file("lm_eval/tasks/humaneval/humaneval.yaml")).read_text()
task = task.replace("!function", "")
until = yaml.safe_load(task)["generation_kwargs"]["until"]
PROMPT = "def add(a, b):\n"


def answer(kind, stops, **options):
    """Return what is written and the stop strings that the server got."""
    asked.clear()
    if kind is LocalChatCompletion:
        prompt = JsonChatStr(json.dumps([{"role": "user", "content": PROMPT}]))
        url = f"{URL}/chat/completions"
    else:
        prompt, url = PROMPT, f"{URL}/completions"
        options |= {"tokenizer_backend": None, "tokenized_requests": False}
    model = kind(model="m", base_url=url, max_retries=1, **options)
    arguments = (prompt, {"until": list(stops), "max_gen_toks": 64})
    request = Instance(request_type="generate_until", doc={}, arguments=arguments, idx=0)
    return model.generate_until([request])[0], asked[0]


print("lm-eval", version("lm-eval"), "HumanEval's stop strings:", until)
text, stops = answer(LocalCompletionsAPI, until)
print(f"completions: {len(stops)} stop strings, {text!r}")
assert text == WRITTEN.split("\nprint")[0] and stops == until, stops
text, stops = answer(LocalChatCompletion, until)
print(f"chat completions: {len(stops)} stop strings, {text!r}")
assert text == WRITTEN and stops == until[:4], "changed"
got = {}
for concurrent in (1, 2):
    for count in (1, 4):
        stops = answer(LocalChatCompletion, until[:count], eos_string="</s>", num_concurrent=concurrent)[1]
        got[concurrent, count] = "</s>" in stops
        print(f"num_concurrent={concurrent}, {count} stop strings: eos_string is one of them: {'</s>' in stops}")
assert got == {(1, 1): True, (1, 4): False, (2, 1): False, (2, 4): False}, "changed"
PY
