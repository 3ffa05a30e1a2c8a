"""Which state a graph may write where it found it: what lets an executor keep one copy of a buffer."""

from __future__ import annotations

import torch

from nextn.compile.build.functional import ROWS_WRITE, FunctionalGraph

_READ = torch.ops.aten.index.Tensor


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
