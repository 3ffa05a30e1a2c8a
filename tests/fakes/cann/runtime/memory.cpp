#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <limits>

#include "capture.h"
#include "contexts.h"
#include "faults.h"
#include "log.h"
#include "settings.h"

namespace fake_cann {
namespace {

constexpr uint64_t alignment = 512;
constexpr uint64_t unlimited = std::numeric_limits<uint64_t>::max();
// No kernel runs, so what a test reads from the device is this unless it was copied there: NaN, or -1.
constexpr int unwritten = 0xFF;

}  // namespace

aclError MemorySpace::allocate(void **place, uint64_t bytes, uint64_t limit) {
    if (place == nullptr || bytes == 0) return ACL_ERROR_RT_PARAM_INVALID;
    const std::lock_guard<std::mutex> lock(mutex_);
    aclError error = ACL_SUCCESS;
    if (bytes > limit || live_bytes_ > limit - bytes) {
        error = ACL_ERROR_RT_MEMORY_ALLOCATION;
    } else {
        *place = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
        if (*place == nullptr) error = ACL_ERROR_RT_MEMORY_ALLOCATION;
    }
    if (error == ACL_SUCCESS) {
        std::memset(*place, unwritten, bytes);
        const auto address = reinterpret_cast<uintptr_t>(*place);
        live_[address] = bytes;
        live_bytes_ += bytes;
        released_.erase(address);
    }
    Entry entry{"allocate", name_};
    entry.bytes = bytes;
    entry.error = error;
    entry.captured = is_capture_open();
    note(entry);
    return error;
}

aclError MemorySpace::release(void *place) {
    if (place == nullptr) return ACL_ERROR_RT_PARAM_INVALID;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(place);
    const auto found = live_.find(address);
    Entry entry{"free", name_};
    entry.captured = is_capture_open();
    if (found != live_.end()) {
        entry.bytes = found->second;
        live_bytes_ -= found->second;
        live_.erase(found);
        released_.insert(address);
        std::free(place);
    } else {
        // Which code CANN gives for these is not documented; what matters is that they differ from success.
        entry.error = released_.count(address) ? ACL_ERROR_RT_MEMORY_FREE : ACL_ERROR_RT_PARAM_INVALID;
    }
    note(entry);
    return entry.error;
}

bool MemorySpace::holds(const void *place, uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(place);
    auto after = live_.upper_bound(address);
    if (after == live_.begin()) return false;
    const auto &[start, size] = *--after;
    const uint64_t offset = address - start;
    return offset <= size && bytes <= size - offset;
}

uint64_t MemorySpace::live_bytes() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_bytes_;
}

uint64_t MemorySpace::live_allocations() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_.size();
}

MemorySpace &device_memory() {
    static auto &space = *new MemorySpace("device");
    return space;
}

MemorySpace &pinned_memory() {
    static auto &space = *new MemorySpace("host");
    return space;
}

}  // namespace fake_cann

using fake_cann::device_memory;
using fake_cann::pinned_memory;

uint64_t fake_cann_live_bytes() {
    return device_memory().live_bytes() + pinned_memory().live_bytes();
}

uint64_t fake_cann_live_allocations() {
    return device_memory().live_allocations() + pinned_memory().live_allocations();
}

aclError aclrtMalloc(void **place, size_t bytes, aclrtMemMallocPolicy) {
    if (fake_cann::is_to_fail(__func__)) return fake_cann::injected_fault;
    if (fake_cann::has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    return device_memory().allocate(place, bytes, fake_cann::device_bytes());
}

aclError aclrtMallocAlign32(void **place, size_t bytes, aclrtMemMallocPolicy policy) {
    return aclrtMalloc(place, bytes, policy);
}

aclError aclrtMallocWithCfg(void **place, size_t bytes, aclrtMemMallocPolicy policy, aclrtMallocConfig *) {
    return aclrtMalloc(place, bytes, policy);
}

aclError aclrtFree(void *place) {
    if (fake_cann::has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    return device_memory().release(place);
}

aclError aclrtFreeWithDevSync(void *place) {
    return aclrtFree(place);
}

aclError aclrtMallocHost(void **place, size_t bytes) {
    if (fake_cann::is_to_fail(__func__)) return fake_cann::injected_fault;
    if (fake_cann::has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    return pinned_memory().allocate(place, bytes, fake_cann::unlimited);
}

aclError aclrtMallocHostWithCfg(void **place, uint64_t bytes, aclrtMallocConfig *) {
    return aclrtMallocHost(place, bytes);
}

aclError aclrtFreeHost(void *place) {
    if (fake_cann::has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    return pinned_memory().release(place);
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t *free_bytes, size_t *total) {
    *total = fake_cann::device_bytes();
    *free_bytes = *total - device_memory().live_bytes();
    return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void *place, aclrtPtrAttributes *attributes) {
    *attributes = {};
    if (device_memory().holds(place, 0)) {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    } else if (pinned_memory().holds(place, 0)) {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_HOST;
    } else {
        attributes->location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    }
    return ACL_SUCCESS;
}
