#pragma once

#include <cstdint>
#include <vector>

#include "backend.h"
#include "model.h"
#include "request.h"
#include "state_arena.h"
#include "status.h"

namespace nextn {

/** What a session's graphs read and write: its state and inputs, beside the model's weights. */
class SessionMemory {
  public:
    static Result<SessionMemory> create(const Model &model);

    const TensorTable &tensors() const { return tensors_; }
    /** Null if there is no such state buffer. */
    void *state(const std::string &name, size_t *num_bytes) const;

    const int64_t *result_block() const { return result_; }
    int64_t scratch_slot() const { return scratch_slot_; }

    void write_control(int64_t slot, const Request &request);
    /** The next prompt tokens of `request`, at most one chunk; returns how many. */
    int64_t write_prompt_chunk(int64_t slot, const Request &request);
    /** The slots of one round, padded with the scratch slot. */
    void write_slots(int64_t batch, const std::vector<int64_t> &live);

  private:
    int64_t *words(const std::string &name) const;
    int64_t *clear_control(int64_t slot);

    StateArena arena_;
    TensorTable tensors_;
    std::vector<std::pair<std::string, size_t>> state_bytes_;
    int64_t scratch_slot_ = 0;
    int64_t prefill_chunk_ = 0;
    int64_t *control_ = nullptr;
    int64_t *result_ = nullptr;
    int64_t *prompt_slot_ = nullptr;
    int64_t *prompt_tokens_ = nullptr;
    int64_t *prompt_count_ = nullptr;
    std::vector<std::pair<int64_t, int64_t *>> slots_inputs_;
};

}  // namespace nextn
