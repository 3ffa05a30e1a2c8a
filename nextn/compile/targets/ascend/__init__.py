"""What exported programs and GE IR for Ascend share: fused ops, custom ops, chip limits."""
