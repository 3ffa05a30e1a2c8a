// Copies and fills. The bytes do move, and both ends must lie in live memory of the kind that was named.

#include <cstring>

#include "capture.h"
#include "faults.h"
#include "memory.h"

using namespace fake_cann;

namespace {

struct Ends {
    const char *name;
    bool from_device;
    bool to_device;
};

Ends ends_of(aclrtMemcpyKind kind, const void *target, const void *source) {
    switch (kind) {
        case ACL_MEMCPY_HOST_TO_HOST:
            return {"H2H", false, false};
        case ACL_MEMCPY_HOST_TO_DEVICE:
        case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
            return {"H2D", false, true};
        case ACL_MEMCPY_DEVICE_TO_HOST:
            return {"D2H", true, false};
        case ACL_MEMCPY_DEFAULT: {
            const bool from_device = device_memory().holds(source, 0);
            const bool to_device = device_memory().holds(target, 0);
            const char *names[2][2] = {{"H2H", "H2D"}, {"D2H", "D2D"}};
            return {names[from_device][to_device], from_device, to_device};
        }
        default:
            return {"D2D", true, true};
    }
}

/** Moves the bytes unless an end is not where the call says; then the error to return. */
aclError move_bytes(void *target, size_t room, const void *source, size_t bytes, const Ends &ends) {
    if (bytes == 0) return ACL_SUCCESS;
    const bool sound = target != nullptr && source != nullptr && bytes <= room &&
                       (!ends.from_device || device_memory().holds(source, bytes)) &&
                       (!ends.to_device || device_memory().holds(target, bytes));
    if (!sound) return ACL_ERROR_RT_PARAM_INVALID;
    std::memmove(target, source, bytes);
    return ACL_SUCCESS;
}

aclError fill_bytes(void *target, size_t room, int32_t value, size_t bytes) {
    if (bytes > room || !device_memory().holds(target, bytes)) return ACL_ERROR_RT_PARAM_INVALID;
    std::memset(target, value, bytes);
    return ACL_SUCCESS;
}

Entry entry_of(const char *kind, const char *name, const char *detail, size_t bytes) {
    Entry entry{kind, name, detail};
    entry.bytes = bytes;
    return entry;
}

}  // namespace

aclError aclrtMemcpy(void *target, size_t room, const void *source, size_t bytes, aclrtMemcpyKind kind) {
    if (is_to_fail(__func__)) return injected_fault;
    const Ends ends = ends_of(kind, target, source);
    return wait_for_device(nullptr, entry_of("copy", ends.name, "sync", bytes),
                           [&](Entry *) { return move_bytes(target, room, source, bytes, ends); });
}

aclError aclrtMemcpyAsync(void *target, size_t room, const void *source, size_t bytes, aclrtMemcpyKind kind,
                          aclrtStream stream) {
    if (is_to_fail(__func__)) return injected_fault;
    const Ends ends = ends_of(kind, target, source);
    return submit(stream, entry_of("copy", ends.name, "async", bytes),
                  [=] { return move_bytes(target, room, source, bytes, ends); });
}

aclError aclrtMemcpyAsyncWithCondition(void *target, size_t room, const void *source, size_t bytes,
                                       aclrtMemcpyKind kind, aclrtStream stream) {
    return aclrtMemcpyAsync(target, room, source, bytes, kind, stream);
}

aclError aclrtMemset(void *target, size_t room, int32_t value, size_t bytes) {
    if (is_to_fail(__func__)) return injected_fault;
    return wait_for_device(nullptr, entry_of("fill", "device", "sync", bytes),
                           [&](Entry *) { return fill_bytes(target, room, value, bytes); });
}

aclError aclrtMemsetAsync(void *target, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
    return submit(stream, entry_of("fill", "device", "async", bytes),
                  [=] { return fill_bytes(target, room, value, bytes); });
}
