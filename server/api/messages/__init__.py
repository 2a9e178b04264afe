"""/v1/messages."""
