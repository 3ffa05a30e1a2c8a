#include "state_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace nextn::core {
namespace {

constexpr size_t huge_page = size_t{2} << 20;

}  // namespace

Result<StateArena> StateArena::create(size_t bytes) {
    StateArena arena;
    // One huge page more, so that a huge page boundary lies inside.
    arena.mapping_bytes_ = (bytes / huge_page + 2) * huge_page;
    void *mapping =
        mmap(nullptr, arena.mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
        return runtime_error("cannot allocate state")
            .expected(concat(bytes, " bytes"))
            .found(std::strerror(errno));
    }
    arena.mapping_ = static_cast<uint8_t *>(mapping);
    const uintptr_t start = (reinterpret_cast<uintptr_t>(mapping) + huge_page - 1) / huge_page * huge_page;
    arena.next_ = reinterpret_cast<uint8_t *>(start);
    // Advice only: without huge pages the state is as correct, with more TLB misses.
    (void)madvise(arena.next_, arena.mapping_bytes_ - huge_page, MADV_HUGEPAGE);
    return arena;
}

StateArena &StateArena::operator=(StateArena &&other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapping_bytes_, other.mapping_bytes_);
    std::swap(next_, other.next_);
    return *this;
}

StateArena::~StateArena() {
    if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

uint8_t *StateArena::take(size_t bytes) {
    uint8_t *const place = next_;
    next_ += padded(bytes);
    return place;
}

}  // namespace nextn::core
