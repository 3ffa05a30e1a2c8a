#pragma once

#include <algorithm>
#include <vector>

#include "nextn.h"

namespace nextn::core {

/** The timings of the last rounds, in a ring that is allocated once. */
class RoundLog {
  public:
    explicit RoundLog(size_t capacity) : ring_(capacity) {}

    void add(const nextn_round_times &times) {
        if (ring_.empty()) return;
        ring_[count_ % ring_.size()] = times;
        ++count_;
    }

    /** Copies at most `capacity` entries, oldest first, and returns how many. */
    size_t copy(nextn_round_times *times, size_t capacity) const {
        const size_t kept = std::min(count_, ring_.size());
        const size_t wanted = std::min(kept, capacity);
        for (size_t i = 0; i < wanted; ++i) times[i] = ring_[(count_ - kept + i) % ring_.size()];
        return wanted;
    }

  private:
    std::vector<nextn_round_times> ring_;
    size_t count_ = 0;
};

}  // namespace nextn::core
