"""A fake CANN: stand-ins for the libraries that an installed torch_npu needs and only a CANN toolkit has.

torch_npu itself is unmodified. It imports, allocates, copies, captures, replays, converts and exports, and
everything it asks of CANN goes to a log that tests read. No kernel runs.
"""
