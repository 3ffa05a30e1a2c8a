// What the fake was asked to do, in order. Tests read it through the C functions at the end.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fake_cann {

/** One call; the fields that a kind of call does not have keep their defaults. */
struct Entry {
    const char *kind = "";
    std::string name{};
    std::string detail{};
    uint64_t bytes = 0;
    /** Tasks in a captured graph, operators in a GE graph. */
    uint64_t tasks = 0;
    int32_t stream = 0;
    /** What the caller was told; 0 is success. */
    int32_t error = 0;
    /** The call went to a capturing stream, or would have disturbed a capture that was open. */
    bool captured = false;
    /** The host waited for the device. */
    bool blocking = false;
};

void note(Entry entry);

}  // namespace fake_cann

extern "C" {
struct fake_cann_record {
    const char *kind;
    const char *name;
    const char *detail;
    uint64_t bytes;
    uint64_t tasks;
    int32_t stream;
    int32_t error;
    int32_t captured;
    int32_t blocking;
};

size_t fake_cann_log_size();
/** Nonzero if there is no such record. The texts live until the log is cleared. */
int32_t fake_cann_log_get(size_t index, fake_cann_record *record);
void fake_cann_log_clear();
}
