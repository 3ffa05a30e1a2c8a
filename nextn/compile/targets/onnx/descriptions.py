"""What an ONNX file says about itself to whoever opens it: documentation and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nextn.compile.build.functional import FunctionalGraph
from nextn.compile.targets.onnx.aliases import writable_in_place
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from nextn.runtime.contract.onnx_names import IN_PLACE, WRITTEN

MODEL_DOC = (
    "One fixed-shape graph of DeepSeek-V4 speculative decoding. Whatever is kept between launches is state: "
    "give every present.NAME of a launch as past.NAME of the next, of whichever graph. State without a "
    "present output is unchanged. Weights are in a safetensors file beside the graph, which all graphs share."
)

_GRAPHS: Mapping[str, str] = {
    "prefill": "the Target over one chunk of a prompt; the last chunk draws the first token",
    "seed": "NextN over the end of a prompt, and the first drafts",
    "decode": "one token per request, without speculation",
    "verify": "the Target over the bonus token and the drafts of each request",
    "accept": "how many drafts hold, and what each request emits",
    "draft_extend": "NextN over the accepted tokens, and the first draft of the next round",
    "draft_step": "NextN over its last draft, and the next one",
    "round": "verify, accept, draft_extend and every draft_step as one graph",
}

_TENSORS = (
    ("control", "what a round has to know of each request, one row per slot, columns as in the manifest"),
    ("result", "what the last round came to, one row per slot, columns as in the manifest"),
    ("tokens", "ring of the last tokens of each prompt"),
    ("target_streams", "ring of the Target's residual streams"),
    ("nextn_stream", "NextN's residual streams of its last row"),
    ("nextn_window", "ring of NextN's key-value rows"),
    (r"window_\d+", "ring of key-value rows of a layer"),
    (r"(indexer_)?ring_\d+", "ring of rows that are not compressed yet"),
    (r"entries_\d+", "compressed key-value rows of a layer"),
    (r"indexer_entries_\d+", "compressed keys that entries are chosen by"),
    (r"slots_b\d+", "the slots of the requests that the graph serves; the last slot is scratch, for padding"),
    ("prompt_slot", "the slot that the prompt goes to"),
    ("prompt_tokens", "token ids of a chunk"),
    ("prompt_count", "how many of them are real"),
)


def graph_doc(spec: GraphSpec) -> str:
    """One sentence on what a graph does."""
    return f"{spec.name}: {_GRAPHS[spec.name]}. Batch {spec.batch}, {spec.rows} rows of each request."


def tensor_doc(spec: TensorSpec) -> str:
    """What an input or an output holds; empty for a name that is new here."""
    return next((text for name, text in _TENSORS if re.fullmatch(name, spec.name)), "")


def properties(spec: GraphSpec, shape: SessionShape, functional: FunctionalGraph) -> dict[str, str]:
    """The model's metadata."""
    return {
        "nextn.graph": spec.name,
        "nextn.batch": str(spec.batch),
        "nextn.rows": str(spec.rows),
        "nextn.speculative_num_steps": str(shape.num_steps),
        "nextn.max_seq_len": str(shape.max_seq_len),
        "nextn.slots": str(shape.slots),
        "nextn.dtype": shape.dtype,
        "nextn.model_sha256": shape.config.sha256(),
        WRITTEN: ",".join(functional.written),
        IN_PLACE: ",".join(writable_in_place(functional)),
    }
