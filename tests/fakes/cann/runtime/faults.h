// Calls that fail because a test wants them to.

#pragma once

#include <cstdint>

namespace fake_cann {

/** What such a call returns, if it returns a code; no code of CANN's. */
constexpr int32_t injected_fault = 999001;

/** Whether this call of the function, named by its `__func__`, is the one to fail. */
bool is_to_fail(const char *function);

/** For aclGetRecentErrMsg: null unless the thread's last fault was injected. */
const char *fault_text();

}  // namespace fake_cann

extern "C" {
/** The `nth` call of `function` from now on fails, counted from 1; null forgets it. */
void fake_cann_fail(const char *function, uint32_t nth);
/** Whether it has failed. */
int32_t fake_cann_has_failed();
}
