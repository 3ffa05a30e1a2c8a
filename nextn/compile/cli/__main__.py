"""`python -m nextn.compile.cli` is `nextn-compile`."""

import sys

from nextn.compile.cli import main

sys.exit(main())
