"""``python -m coregrad_conformance``."""

from coregrad_conformance.cli import main

raise SystemExit(main())
