#pragma once

#include "status.h"

namespace nextn::core {

/**
 * Loads libnextn_ops, the kernels that graphs call by name, into the global scope, where the graphs' symbols
 * are resolved. It lies beside libnextn and is never unloaded. Call it after libtorch_cpu is global.
 */
Status load_op_library();

}  // namespace nextn::core
