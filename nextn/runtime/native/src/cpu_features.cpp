#include "cpu_features.h"

#include <algorithm>

#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <fstream>
#endif

namespace nextn::core {

#if defined(__x86_64__)
namespace {

enum Register { eax, ebx, ecx, edx };

/** Parts of the register file that the operating system must save (XCR0) for a feature to be usable. */
constexpr unsigned long long no_state = 0, ymm = 0x6, zmm = 0xe6, tiles = 0x60000;

struct Feature {
    const char *name;
    unsigned leaf, subleaf;
    Register word;
    unsigned bit;
    unsigned long long saved_state;
};

constexpr Feature features[] = {
    {"sse3", 1, 0, ecx, 0, no_state},
    {"ssse3", 1, 0, ecx, 9, no_state},
    {"fma", 1, 0, ecx, 12, ymm},
    {"sse41", 1, 0, ecx, 19, no_state},
    {"sse42", 1, 0, ecx, 20, no_state},
    {"popcnt", 1, 0, ecx, 23, no_state},
    {"movbe", 1, 0, ecx, 22, no_state},
    {"avx", 1, 0, ecx, 28, ymm},
    {"f16c", 1, 0, ecx, 29, ymm},
    {"bmi1", 7, 0, ebx, 3, no_state},
    {"avx2", 7, 0, ebx, 5, ymm},
    {"bmi2", 7, 0, ebx, 8, no_state},
    {"avx512f", 7, 0, ebx, 16, zmm},
    {"avx512dq", 7, 0, ebx, 17, zmm},
    {"avx512ifma", 7, 0, ebx, 21, zmm},
    {"avx512cd", 7, 0, ebx, 28, zmm},
    {"avx512bw", 7, 0, ebx, 30, zmm},
    {"avx512vl", 7, 0, ebx, 31, zmm},
    {"avx512vbmi", 7, 0, ecx, 1, zmm},
    {"avx512vbmi2", 7, 0, ecx, 6, zmm},
    {"avx512vnni", 7, 0, ecx, 11, zmm},
    {"avx512bitalg", 7, 0, ecx, 12, zmm},
    {"avx512vpopcntdq", 7, 0, ecx, 14, zmm},
    {"amxbf16", 7, 0, edx, 22, tiles},
    {"avx512fp16", 7, 0, edx, 23, zmm},
    {"amxtile", 7, 0, edx, 24, tiles},
    {"amxint8", 7, 0, edx, 25, tiles},
    {"avxvnni", 7, 1, eax, 4, ymm},
    {"avx512bf16", 7, 1, eax, 5, zmm},
    {"amxfp16", 7, 1, eax, 21, tiles},
};

unsigned long long saved_state() {
    unsigned words[4] = {};
    constexpr unsigned osxsave = 1u << 27;
    if (!__get_cpuid(1, &words[eax], &words[ebx], &words[ecx], &words[edx])) return 0;
    if ((words[ecx] & osxsave) == 0) return 0;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (static_cast<unsigned long long>(high) << 32) | low;
}

}  // namespace

bool cpu_has(const std::string &feature) {
    std::string name = feature;
    name.erase(std::remove(name.begin(), name.end(), '_'), name.end());
    for (const Feature &known : features) {
        if (name != known.name) continue;
        unsigned words[4] = {};
        if (!__get_cpuid_count(known.leaf, known.subleaf, &words[eax], &words[ebx], &words[ecx],
                               &words[edx])) {
            return false;
        }
        const bool implemented = (words[known.word] >> known.bit & 1) != 0;
        return implemented && (saved_state() & known.saved_state) == known.saved_state;
    }
    return false;
}

#else

/** Elsewhere the kernel's list decides; it leaves out what the system does not support. */
bool cpu_has(const std::string &feature) {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.compare(0, 8, "Features") != 0) continue;
        return (line + " ").find(" " + feature + " ") != std::string::npos;
    }
    return false;
}

#endif

}  // namespace nextn::core
