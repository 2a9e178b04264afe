"""State that outlives a connection: stored responses, conversations, and logs of replies."""
