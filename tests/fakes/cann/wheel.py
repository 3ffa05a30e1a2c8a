"""What the installed torch_npu wants from CANN, read from its files: another version needs no other list."""

from __future__ import annotations

import importlib.metadata
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.cann import elf

LOOKED_UP = re.compile(
    rb"(?<![A-Za-z0-9_])((?:aclnn|aclrt|aclmdl|aclop|aclprof|aclsys|acl(?:Create|Destroy|Get|Set)|Hccl)"
    rb"[A-Za-z0-9_]{2,80})\x00"
)
"""Names in the form of a CANN function: most are not linked but looked up when they are first called."""

IR_ATTRIBUTE = re.compile(rb'\.attr\("([a-z0-9_]+)"')
"""An optional attribute, where TorchAir writes down what it believes an operator of CANN to have."""

OPENED_LATER = ("libruntime.so", "libopapi.so", "libhcomm.so", "libaoe_tuning.so", "libnnopbase.so")
"""Libraries that torch_npu opens by name; where one is missing it gives up functions, or raises."""

WORKSPACE = "GetWorkspaceSize"
"""An operator X is two functions: aclnnXGetWorkspaceSize prepares a launch, aclnnX makes it."""


@dataclass(frozen=True)
class Demand:
    """What stand-ins have to offer."""

    libraries: tuple[str, ...]
    linked: frozenset[str]
    """Symbols without which the libraries of the wheel do not load."""
    looked_up: frozenset[str]
    """Functions asked for by name at run time."""

    @property
    def launchers(self) -> frozenset[str]:
        return frozenset(
            name
            for name in self.looked_up
            if name.startswith("aclnn")
            and name + WORKSPACE in self.looked_up
            and not name.endswith(WORKSPACE)
        )


def site_packages() -> Path:
    return Path(sysconfig.get_paths()["purelib"])


def include_folders() -> list[Path]:
    """The headers of CANN that the wheel ships."""
    include = site_packages() / "torch_npu" / "include"
    return [include / "third_party" / "acl" / "inc", include]


def version() -> str:
    return importlib.metadata.version("torch_npu")


def ir_attributes() -> frozenset[str]:
    """The optional attributes that TorchAir asks CANN's operators for."""
    source = site_packages() / "torch_npu/dynamo/torchair/_ge_concrete_graph/auto_generated_ge_raw_ops.py"
    return frozenset(name.decode() for name in IR_ATTRIBUTE.findall(source.read_bytes()))


def _own_libraries(site: Path) -> list[Path]:
    package = site / "torch_npu"
    folders = (package, package / "lib", package / "dynamo" / "torchair" / "core")
    return [path for folder in folders for path in sorted(folder.glob("*.so"))]


def read_demand() -> Demand:
    """The demand of the wheel that this Python has installed."""
    site = site_packages()
    own = _own_libraries(site)
    if not own:
        raise FileNotFoundError(f"no torch_npu in {site}")
    torch_libraries = sorted((site / "torch" / "lib").glob("*.so"))
    bundled = {path.name for path in own + torch_libraries}
    system = elf.system_libraries()

    provided = set[str]()
    missing = list[str]()
    for name in dict.fromkeys(name for path in own for name in elf.needed_libraries(path)):
        if name in bundled:
            continue
        if name in system:
            provided |= elf.defined_symbols(system[name])
        elif not name.startswith("ld-linux"):
            missing.append(name)
    for path in own + torch_libraries:
        provided |= elf.defined_symbols(path)

    linked = {name for path in own for name in elf.undefined_symbols(path)}
    # Python's own are in the interpreter.
    linked = {name for name in linked - provided if not name.startswith(("Py", "_Py"))}
    looked_up = {name.decode() for path in own for name in LOOKED_UP.findall(path.read_bytes())}
    libraries = (*missing, *(name for name in OPENED_LATER if name not in missing))
    return Demand(libraries, frozenset(linked), frozenset(looked_up - provided))
