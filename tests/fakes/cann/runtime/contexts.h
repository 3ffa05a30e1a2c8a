// Contexts: what a thread makes belongs to its current one, and may be used there only.

#pragma once

#include <acl/acl.h>

namespace fake_cann {

/** The calling thread's, which may be destroyed already; the default one, or none, if it never set one. */
aclrtContext current_context();
/** Whether the calling thread can do nothing that needs a device. */
bool has_no_context();
/** What choosing a device does. */
void take_default_context();

}  // namespace fake_cann
