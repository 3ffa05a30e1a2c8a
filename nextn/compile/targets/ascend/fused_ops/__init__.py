"""Ascend's fused operators as forms of our operators, one file for each operator or pair of them.

A form stands where its guard holds, by shapes, dtypes and attributes; elsewhere the plain aten form does.
What a fused operator computes is taken from torch_npu's and CANN's published descriptions; nothing here ran
on an NPU. Inputs are widened where an operator would round inside and the plain form does not.
"""
