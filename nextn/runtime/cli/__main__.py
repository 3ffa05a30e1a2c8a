"""`python -m nextn.runtime.cli` is `nextn-run`."""

import sys

from nextn.runtime.cli import main

sys.exit(main())
