#!/usr/bin/env bash
# infermark 0.3.0, llm-benchmark-runner 0.2.0 and bench-my-llm 0.5.0, which measure tokens per second of OpenAI-compatible servers.
# Expected: 12 tokens count as 12, however the server cuts them into chunks (with speculative decoding several come at once; the
#           last chunk's `usage` says 12), thoughts count as tokens, and a reply that ends with the server's error is a failed one.
# Seen:     the first two count chunks: 12 tokens are 4 when three come at once, so a server that sends them at the same pace is
#           reported as three times as slow; `usage` is neither asked for nor read. Thoughts (`reasoning_content`) count as nothing.
#           A reply that breaks off with an error after two tokens is a success with 2 tokens. bench-my-llm takes 1.3 tokens a
#           word, so that 12 tokens of code without blanks are 1, but it raises at the error.
source "$(dirname "$0")/begin.sh"
from_pypi infermark==0.3.0 llm-benchmark-runner==0.2.0 bench-my-llm==0.5.0
python - <<'PY'
import json

TOKENS = ["for", "(", "i", "=", "0", ";", "i", "<", "n", ";", "i", "++"]
usage = {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
last = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [], "usage": usage}
pieces = [[{"content": token}, None] for token in TOKENS]
replies = {
    "one at once": [*pieces, [{}, "stop"], last],
    "three at once": [*([{"content": "".join(TOKENS[i : i + 3])}, None] for i in range(0, 12, 3)), [{}, "stop"], last],
    "thoughts": [*([{"reasoning_content": token}, None] for token in TOKENS[:-1]), pieces[-1], [{}, "stop"], last],
    "breaks off": [*pieces[:2], {"error": {"message": "out of memory", "type": "server_error", "code": 500}}],
}
with open("replies.json", "w") as file:
    json.dump(replies, file)
PY
serve replies.json
python - <<'PY'
import asyncio
import os
from importlib.metadata import version

import httpx
import openai
from bench_my_llm.prompts import Prompt
from bench_my_llm.runner import run_single_prompt
from infermark import BenchmarkConfig, BenchmarkMode, run_benchmark
from infermark.client import send_request
from llm_benchmark_runner.cli import Endpoint, run_single_benchmark

url = os.environ["url"]
for name in ("infermark", "llm-benchmark-runner", "bench-my-llm"):
    print(name, version(name))


async def first_two(model):
    async with httpx.AsyncClient() as client:
        one = await send_request(client, url, model, "Hello", 64, BenchmarkMode.STREAMING)
        two = await run_single_benchmark(client, Endpoint("e", "e", url.removesuffix("/v1"), model), "Hello", 64)
    return (one.success, one.output_tokens), (two.status == "success", two.output_token_count)


def third(model):
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    try:
        return True, run_single_prompt(client, model, Prompt("Hello", "code")).tokens_generated
    except openai.APIError:
        return False, 0


for model, expected in {
    "one at once": ((True, 12), (True, 12), (True, 1)),
    "three at once": ((True, 4), (True, 4), (True, 1)),
    "thoughts": ((True, 1), (True, 1), (True, 1)),
    "breaks off": ((True, 2), (True, 2), (False, 0)),
}.items():
    seen = *asyncio.run(first_two(model)), third(model)
    print(f"{model}: success and tokens {seen}")
    assert seen == expected, "changed"
report = run_benchmark(BenchmarkConfig(url, "breaks off", concurrency_levels=[1], n_requests=2, warmup=0)).results[0]
print(f"infermark's report of two replies that break off: {report.n_success} succeeded, {report.n_error} failed")
assert (report.n_success, report.n_error) == (2, 0), "changed"
PY
