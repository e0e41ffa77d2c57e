"""``python -m coregrad``: hands over to the command line, which is in `coregrad.cli`."""

import sys

from coregrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
