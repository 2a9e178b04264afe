"""Run duo-drafter by `python -m drafters`."""

from drafters.drafter_cli import main

raise SystemExit(main())
