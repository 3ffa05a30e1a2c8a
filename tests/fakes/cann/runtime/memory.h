// Device and pinned host memory: both are ordinary memory of this process, with the books kept.

#pragma once

#include <acl/acl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

namespace fake_cann {

class MemorySpace {
  public:
    explicit MemorySpace(const char *name) : name_(name) {}

    aclError allocate(void **place, uint64_t bytes, uint64_t limit);
    aclError release(void *place);
    /** Whether all of [place, place + bytes) lies in one live allocation. */
    bool holds(const void *place, uint64_t bytes);
    uint64_t live_bytes();
    uint64_t live_allocations();

  private:
    const char *name_;
    std::mutex mutex_;
    std::map<uintptr_t, uint64_t> live_;
    uint64_t live_bytes_ = 0;
    /** Tells a second free from the free of an address that was never given out. */
    std::set<uintptr_t> released_;
};

MemorySpace &device_memory();
MemorySpace &pinned_memory();

}  // namespace fake_cann

extern "C" {
uint64_t fake_cann_live_bytes();
uint64_t fake_cann_live_allocations();
}
