"""python -m drafters: the same as duo-drafter."""

from drafters.cli import main

raise SystemExit(main())
