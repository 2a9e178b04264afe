"""python -m drafters: duo-drafter."""

from drafters.cli import main

raise SystemExit(main())
