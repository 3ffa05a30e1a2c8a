"""What the argument parsers of both tools share."""

from __future__ import annotations

import argparse
from typing import NoReturn

from nextn.runtime.contract.errors import UsageError


class OneLineParser(argparse.ArgumentParser):
    """Raises UsageError instead of printing the usage page."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
