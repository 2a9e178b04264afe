"""POST /rpc, a JSON-RPC 2.0 facade."""
