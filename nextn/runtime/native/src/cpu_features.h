#pragma once

#include <string>

namespace nextn::core {

/**
 * Whether this processor and operating system run instructions of `feature`, a lower-case cpuid name such as
 * "avx512_vnni" (underscores are not significant). An unknown name counts as absent.
 */
bool cpu_has(const std::string &feature);

}  // namespace nextn::core
