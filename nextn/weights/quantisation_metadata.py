"""The metadata of an export about its own quantisation, beside its tensors."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.checkpoint_files import files_of
from nextn.weights.dequantise import Encoding
from nextn.weights.json_fields import read_json_object

DESCRIPTION_FILE = "quant_model_description.json"

_ENCODING_OF_TYPE: Mapping[str, Encoding] = {"FLOAT": "plain", "W8A8_DYNAMIC": "int8_row"}

_ROTATION = "quarot"
_OFF = ("", "none", "false", "off")
_ROTATED = (
    "the weights are rotated (QuaRot), so stream mixing and norms no longer mean what the graphs compute; "
    "use the release or an export made without rotation"
)


@dataclass(frozen=True)
class QuantisationMetadata:
    """The description file of a ModelSlim export and the method that `config.json` names.

    `types` is None without a description file. Tensors decide how they are read; a description that
    contradicts them is refused.
    """

    file: Path
    types: Mapping[str, object] | None
    method: str | None

    @classmethod
    def read(cls, folder: Path) -> QuantisationMetadata:
        """The metadata of a checkpoint folder.

        Raises:
            CheckpointError: a file that is there is not a JSON object, or the weights are rotated.
        """
        file = folder / DESCRIPTION_FILE
        # A dangling link is a description that was not downloaded, not the absence of one.
        types = read_json_object(file) if os.path.lexists(file) else None
        if types is not None:
            _refuse_rotation(file, types)
        config = folder / "config.json"
        declared = read_json_object(config).get("quantization_config") if config.exists() else None
        _refuse_rotation(config, {"quantization_config": declared})
        matrices = _rotation_matrices(folder)
        if matrices is not None:
            raise CheckpointError(
                _ROTATED, file=matrices, expected="no rotation matrices", found=matrices.name
            )
        method = declared.get("quant_method") if isinstance(declared, dict) else None
        return cls(file, types, method if isinstance(method, str) else None)

    def absent(self, names: Collection[str]) -> tuple[str, ...]:
        """The tensors described that are not among `names`."""
        described = (name for name, kind in (self.types or {}).items() if "." in name and _is_type(kind))
        return tuple(name for name in described if name not in names)

    def check(self, name: str, encoding: Encoding) -> None:
        """Refuse a tensor whose description contradicts its header.

        Args:
            name: as on disk.
            encoding: determined by dtype, shape and scales of the tensor.
        """
        if self.types is None:
            return
        declared = self.types.get(name)
        if declared is None and encoding == "plain":
            return
        expected = _ENCODING_OF_TYPE.get(declared) if isinstance(declared, str) else None
        if expected is None:
            raise CheckpointError(
                "quantisation not supported",
                file=self.file,
                key=name,
                expected=" or ".join(_ENCODING_OF_TYPE),
                found="nothing" if declared is None else str(declared)[:80],
            )
        if expected != encoding:
            raise CheckpointError(
                "the description contradicts the tensor",
                file=self.file,
                key=name,
                expected=f"{declared} ({expected})",
                found=encoding,
            )


def _is_type(value: object) -> bool:
    return isinstance(value, str) and value in _ENCODING_OF_TYPE


def _refuse_rotation(file: Path, description: Mapping[str, object]) -> None:
    key = _rotation(description.items(), "")
    if key is not None:
        raise CheckpointError(_ROTATED, file=file, key=key)


def _rotation_matrices(folder: Path) -> Path | None:
    """A file of them that came with the checkpoint: at its top or, as ModelSlim writes it, in `optional/`."""
    files = sorted((*files_of(folder, "*.safetensors"), *files_of(folder, "optional/*.safetensors")))
    return next((file for file in files if _ROTATION in file.name.lower()), None)


def _rotation(items: Iterable[tuple[object, object]], path: str) -> str | None:
    """The path of the first key or text that names a rotation and is not switched off."""
    for name, value in items:
        here = f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}".removeprefix(".")
        if _ROTATION in str(name).lower():
            if _is_on(value):
                return here
        elif isinstance(value, str):
            if _ROTATION in value.lower():
                return here
        elif isinstance(value, dict | list):
            found = _rotation(value.items() if isinstance(value, dict) else enumerate(value), here)
            if found is not None:
                return found
    return None


def _is_on(value: object) -> bool:
    if isinstance(value, dict | list):
        return any(_is_on(item) for item in (value.values() if isinstance(value, dict) else value))
    # A type, `FLOAT` too, is that of a rotation matrix.
    return value.lower() not in _OFF if isinstance(value, str) else bool(value)
