"""Tests of nextn.runtime.contract."""
