"""Exported programs (`.pt2`), captured on a device at run time."""
