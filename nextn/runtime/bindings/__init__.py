"""Python over the C interface of libnextn."""
