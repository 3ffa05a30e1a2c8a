"""A fake CANN: stand-ins for the libraries that an installed torch_npu needs and only a CANN toolkit has.

torch_npu itself is unmodified. It imports, allocates, copies, captures, replays, converts and exports, and
everything it asks of CANN goes to a log that tests read. No kernel runs.

| variable | |
|---|---|
| FAKE_CANN_DEVICES | how many there are; 1 |
| FAKE_CANN_SOC | what they are; Ascend910_9391 |
| FAKE_CANN_DEVICE_BYTES | what they hold, all together; 8 GiB |
| FAKE_CANN_CUSTOM_OPS | GE operator types, with commas between, that count as registered |
| FAKE_CANN_BARE_THREADS | 1: a thread has no context before it asks for one; otherwise the default one |
| FAKE_CANN_STRICT | 1: a host wait inside a capture fails with 107030; otherwise it is only logged |

`python -m tests.fakes.cann PROGRAM` runs a program on it; in tests, take the fixture `cann`. Programs in C++
compile against the headers in torch_npu and link libascendcl.so of the folder that `preload` returns.
"""
