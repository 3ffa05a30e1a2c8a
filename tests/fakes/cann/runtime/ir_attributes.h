// Generated from the wheel: the optional attributes that torchair asks CANN's operators for.

#pragma once

namespace fake_cann {

/** Names, null at the end. */
extern const char *const ir_attributes[];

}  // namespace fake_cann
