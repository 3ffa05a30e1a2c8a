#include "contexts.h"

#include <cstdint>

#include "faults.h"
#include "handles.h"
#include "settings.h"

using namespace fake_cann;

namespace {

struct Context {};

// torch_npu only passes it on and compares it.
char default_context;

aclrtContext initial_context() {
    return threads_start_bare() ? nullptr : &default_context;
}

thread_local aclrtContext current = initial_context();

bool is_alive(aclrtContext context) {
    return context == &default_context || handles<Context>().find(context) != nullptr;
}

}  // namespace

aclrtContext fake_cann::current_context() {
    return current;
}

bool fake_cann::has_no_context() {
    return !is_alive(current);
}

void fake_cann::take_default_context() {
    current = &default_context;
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
    if (current == context) current = initial_context();
    return handles<Context>().drop(context) ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
    if (is_to_fail(__func__)) return injected_fault;
    if (!is_alive(context)) return ACL_ERROR_RT_PARAM_INVALID;
    current = context;
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context) {
    if (current == nullptr) return ACL_ERROR_RT_CONTEXT_NULL;
    // Nobody told this thread if another destroyed it.
    *context = current;
    return ACL_SUCCESS;
}
