#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "status.h"

namespace nextn::core {

/** One zero-filled anonymous mapping that holds a session's whole state; huge pages where the system has
 * them. */
class StateArena {
  public:
    static constexpr size_t alignment = 64;

    /** Room that `bytes` take up in an arena. */
    static size_t padded(size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

    static Result<StateArena> create(size_t bytes);

    StateArena() = default;
    StateArena(StateArena &&other) noexcept { *this = std::move(other); }
    StateArena &operator=(StateArena &&other) noexcept;
    ~StateArena();

    /** The next `padded(bytes)` bytes; the caller has added them up for `create`. */
    uint8_t *take(size_t bytes);

  private:
    uint8_t *mapping_ = nullptr;
    size_t mapping_bytes_ = 0;
    uint8_t *next_ = nullptr;
};

}  // namespace nextn::core
