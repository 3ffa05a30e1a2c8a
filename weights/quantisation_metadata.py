"""What an export says about its own quantisation, beside its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nextn.graphs.config import read_json_object
from nextn.runtime.contract.errors import CheckpointError
from nextn.weights.dequantise import Encoding

DESCRIPTION_FILE = "quant_model_description.json"

_ENCODING_OF_TYPE: Mapping[str, Encoding] = {"FLOAT": "plain", "W8A8_DYNAMIC": "int8_row"}

_ROTATION_KEY = "quarot"


@dataclass(frozen=True)
class QuantisationMetadata:
    """The description file of a ModelSlim export (spec section 2.6) and the method `config.json` names.

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
        types = read_json_object(file) if file.exists() else None
        if types is not None:
            _refuse_rotation(file, types)
        config = folder / "config.json"
        declared = read_json_object(config).get("quantization_config") if config.exists() else None
        method = declared.get("quant_method") if isinstance(declared, dict) else None
        return cls(file, types, method if isinstance(method, str) else None)

    def check(self, name: str, encoding: Encoding) -> None:
        """Refuse a tensor whose description says otherwise than its header.

        Args:
            name: as on disk.
            encoding: what dtype, shape and scales make of the tensor.
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


def _refuse_rotation(file: Path, description: Mapping[str, object]) -> None:
    key = _rotation_key(description)
    if key is not None:
        raise CheckpointError(
            "the weights are rotated (QuaRot), so stream mixing and norms no longer mean what the graphs "
            "compute; use the release or an export made without rotation",
            file=file,
            key=key,
        )


def _rotation_key(description: Mapping[str, object], path: str = "") -> str | None:
    """The path of the first key that speaks of a rotation and is not switched off."""
    for name, value in description.items():
        here = f"{path}{name}"
        if _ROTATION_KEY in name.lower() and value not in (None, False, "", "FLOAT"):
            return here
        if isinstance(value, dict):
            found = _rotation_key(value, f"{here}.")
            if found is not None:
                return found
    return None
