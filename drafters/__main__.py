"""python -m drafters: duo-drafter."""

from drafters.drafter_cli import main

raise SystemExit(main())
