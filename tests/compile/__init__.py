"""Tests of nextn.compile."""
