"""What an ONNX file says about itself to whoever opens it: documentation and metadata.

Also which state a graph may write where it found it, which lets an executor keep one copy of a buffer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from nextn.compile.targets.functional import ROWS_WRITE, FunctionalGraph
from nextn.graphs.session_shape import SessionShape
from nextn.runtime.contract.graph_spec import GraphSpec, TensorSpec
from nextn.runtime.contract.onnx_names import IN_PLACE, WRITTEN

_READ = torch.ops.aten.index.Tensor

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


def writable_in_place(functional: FunctionalGraph) -> tuple[str, ...]:
    """The written tensors whose last value may take the memory of the first, in any order of execution.

    That is when every reader of the first value leads to the last write, which must then wait for it. Where
    one does not, as attention over a ring does not decide the rows that join the ring, an executor that knows
    nothing of the shared memory may write before it has read.
    """
    results, arguments = functional.results(), functional.arguments()
    # Bit i of a node: the last write of tensor i waits for it.
    awaited = dict.fromkeys(functional.graph.nodes, 0)
    for place, node in enumerate(results.values()):
        awaited[node] |= 1 << place
    for node in reversed(functional.graph.nodes):
        if node.op == "call_function":
            for source in node.all_input_nodes:
                awaited[source] |= awaited[node]
    found = []
    for place, name in enumerate(results):
        bit = 1 << place
        readers = arguments[name].users
        copies = all(reader.target in (_READ, ROWS_WRITE) for reader in readers)
        if copies and all(awaited[reader] & bit for reader in readers):
            found.append(name)
    return tuple(found)
