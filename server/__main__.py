"""python -m server: the same as duo."""

from server.cli import main

raise SystemExit(main())
