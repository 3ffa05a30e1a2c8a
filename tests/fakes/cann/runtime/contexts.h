// Contexts: what a thread makes belongs to its current one, and may be used there only.

#pragma once

#include <acl/acl.h>

namespace fake_cann {

/** The calling thread's; the device's default context if it has set none. */
aclrtContext current_context();

}  // namespace fake_cann
