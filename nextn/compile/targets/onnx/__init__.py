"""Lowering to ONNX: graphs as an open interchange, with state as explicit inputs and outputs.

Graphs are written by a table of ours (`emitter.CONVERTERS`) and not by `torch.onnx.export`. Of torch 2.13.0
that floors quotients of integers in float32 (2147483646 // 2147483647 becomes 1, and a seed its neighbour),
gives a `round` 8016 nodes instead of 4599, some of them lists, and takes 17 s for what the table writes in
0.2 s.
"""
