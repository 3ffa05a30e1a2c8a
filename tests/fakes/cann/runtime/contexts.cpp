#include "contexts.h"

#include <cstdint>

#include "faults.h"
#include "handles.h"

using namespace fake_cann;

namespace {

struct Context {};

// torch_npu only passes it on and compares it.
char default_context;

thread_local aclrtContext current = &default_context;

}  // namespace

aclrtContext fake_cann::current_context() {
    return current;
}

extern "C" uint64_t fake_cann_live_contexts() {
    return handles<Context>().size();
}

aclError aclrtCreateContext(aclrtContext *context, int32_t) {
    if (is_to_fail(__func__)) return injected_fault;
    *context = current = handles<Context>().make({});
    return ACL_SUCCESS;
}

aclError aclrtDestroyContext(aclrtContext context) {
    if (current == context) current = &default_context;
    return handles<Context>().drop(context) ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
    if (is_to_fail(__func__)) return injected_fault;
    const bool known = context == &default_context || handles<Context>().find(context) != nullptr;
    if (!known) return ACL_ERROR_RT_PARAM_INVALID;
    current = context;
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context) {
    *context = current;
    return ACL_SUCCESS;
}
