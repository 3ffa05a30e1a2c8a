"""Leaf package: what compile, runtime and graphs agree on. Imports nothing of ours and no torch."""
