"""What an Ascend machine says of itself: CANN and its version, driver and firmware, its chips."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from nextn.runtime.contract.errors import ExecutionError

_TOOLKIT_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_TOOLKIT_FILES = ("version.cfg", "version.info", "runtime/version.info", "compiler/version.info")
_DRIVER, _FIRMWARE = Path("/usr/local/Ascend/driver"), Path("/usr/local/Ascend/firmware")

_VERSION = re.compile(r"(?im)^\s*(?:version|runtime_running_version|runtime_version)\s*=\s*\[?([^\]\s]+)")

_LIBRARY = "libascendcl.so"

UNKNOWN = "not found"


def require_acl() -> None:
    """Raises ExecutionError where CANN's runtime does not load, as a session of `.om` graphs would."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise ExecutionError(
            "cannot load CANN's runtime; source its set_env.sh", file=_LIBRARY, found=error
        ) from error


def ascend_facts(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """By name, as text; what cannot be read is `not found`. Runs nothing on a device."""
    homes = [Path(environment[name]) for name in _TOOLKIT_VARIABLES if environment.get(name)]
    files = [home / name for home in homes for name in _TOOLKIT_FILES]
    return {
        "torch_npu": _package_version("torch_npu"),
        "CANN": _version_in(files),
        "CANN folder": str(homes[0]) if homes else UNKNOWN,
        "driver": _version_in([_DRIVER / "version.info"]),
        "firmware": _version_in([_FIRMWARE / "version.info"]),
        **_library_facts(),
    }


def _package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def _version_in(files: Iterable[Path]) -> str:
    for file in files:
        try:
            found = _VERSION.search(file.read_text(errors="replace"))
        except OSError:
            continue
        if found is not None:
            return found[1]
    return UNKNOWN


def _library_facts() -> dict[str, str]:
    """What libascendcl answers; this process has it loaded if anything ran on the device."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return {"ACL": f"{_LIBRARY} does not load: {error}"}
    facts = dict.fromkeys(("ACL", "SoC", "devices"), UNKNOWN)
    version = [ctypes.c_int32() for _ in range(3)]
    if hasattr(library, "aclrtGetVersion") and library.aclrtGetVersion(*map(ctypes.byref, version)) == 0:
        facts["ACL"] = ".".join(str(part.value) for part in version)
    if hasattr(library, "aclrtGetSocName"):
        library.aclrtGetSocName.restype = ctypes.c_char_p
        name = library.aclrtGetSocName()
        facts["SoC"] = UNKNOWN if name is None else name.decode(errors="replace")
    count = ctypes.c_uint32()
    if hasattr(library, "aclrtGetDeviceCount") and library.aclrtGetDeviceCount(ctypes.byref(count)) == 0:
        facts["devices"] = str(count.value)
    return facts
