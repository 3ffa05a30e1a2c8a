"""NextN: ahead-of-time compiled DeepSeek-V4 speculative decoding.

`nextn.load(artifact).generate(prompts)` replays a compiled artifact; the names below are imported on
first use, so `import nextn` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nextn.runtime.contract.errors import NextnError
    from nextn.runtime.contract.version import VERSION as __version__
    from nextn.runtime.engine.api import load

__all__ = ["NextnError", "__version__", "load"]

_SOURCES = {
    "load": ("nextn.runtime.engine.api", "load"),
    "NextnError": ("nextn.runtime.contract.errors", "NextnError"),
    "__version__": ("nextn.runtime.contract.version", "VERSION"),
}


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _SOURCES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_SOURCES])
