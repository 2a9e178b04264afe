"""Run the command `duo` as `python -m server`."""

from server.cli import main

raise SystemExit(main())
