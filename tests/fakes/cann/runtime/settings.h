// What tests can choose: environment variables, and strictness also while the process runs.

#pragma once

#include <cstdint>
#include <string>

namespace fake_cann {

/** FAKE_CANN_DEVICES, 1 if not set. */
uint32_t device_count();
/** FAKE_CANN_SOC; the name decides which operators torch_npu takes. */
const char *soc_name();
/** FAKE_CANN_DEVICE_BYTES, 8 GiB if not set: what one device can hold. */
uint64_t device_bytes();
/** FAKE_CANN_BARE_THREADS: whether a thread has no context before it asks for one. */
bool threads_start_bare();
/** Whether FAKE_CANN_CUSTOM_OPS, names with commas between, has this GE operator type. */
bool is_custom_op(const std::string &type);

/** Whether a host wait inside a capture fails; otherwise it is only logged. From FAKE_CANN_STRICT at first.
 */
bool is_strict();

}  // namespace fake_cann

/** Returns what it was. */
extern "C" int32_t fake_cann_set_strict(int32_t strict);
