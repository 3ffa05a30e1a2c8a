"""Tests of the references themselves."""
