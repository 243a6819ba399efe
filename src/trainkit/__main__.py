"""`python -m trainkit`: the `trainkit` command."""

import sys

from trainkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
