"""`python -m svir_ext`, which is the command `svir` once installed. See docs/command.md."""

from __future__ import annotations

import sys

from svir_ext.command import main

if __name__ == "__main__":
    sys.exit(main())
