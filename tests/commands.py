"""The installed commands, as a shell finds them."""

import sys
from pathlib import Path

NEXTN_COMPILE = str(Path(sys.executable).with_name("nextn-compile"))
NEXTN_RUN = str(Path(sys.executable).with_name("nextn-run"))
