#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "model.h"
#include "request.h"
#include "state_arena.h"
#include "status.h"

namespace nextn::core {

/**
 * What a session's graphs read and write: its state and inputs, beside the model's weights. What the host
 * writes is noted in `changes`, for the backend that runs the graphs.
 */
class SessionMemory {
  public:
    static Result<std::unique_ptr<SessionMemory>> create(const Model &model);

    const TensorTable &tensors() const { return tensors_; }
    /** Null if there is no such state buffer. */
    const BoundTensor *state(const std::string &name) const;

    const int64_t *result_block() const { return result_; }
    int64_t scratch_slot() const { return scratch_slot_; }

    void write_control(int64_t slot, const Request &request);
    /** The next prompt tokens of `request`, at most one chunk; returns how many. */
    int64_t write_prompt_chunk(int64_t slot, const Request &request);
    /** The slots of one round, padded with the scratch slot. */
    void write_slots(int64_t batch, const std::vector<int64_t> &live);

    const std::vector<HostWrite> &changes() const { return changes_; }
    void forget_changes() { changes_.clear(); }

  private:
    /** An int64 buffer that the host writes. */
    struct HostBuffer {
        const std::string *name = nullptr;
        int64_t *words = nullptr;
    };

    SessionMemory() = default;
    Status allocate(const Model &model);
    HostBuffer host_buffer(const std::string &name) const;
    int64_t *clear_control(int64_t slot);
    void note_control(int64_t slot);
    void write_input(const HostBuffer &input, const int64_t *values, size_t count);

    StateArena arena_;
    TensorTable tensors_;
    int64_t scratch_slot_ = 0;
    int64_t prefill_chunk_ = 0;
    HostBuffer control_;
    int64_t *result_ = nullptr;
    HostBuffer prompt_slot_;
    HostBuffer prompt_tokens_;
    HostBuffer prompt_count_;
    std::vector<std::pair<int64_t, HostBuffer>> slots_inputs_;
    std::vector<int64_t> values_; /**< of an input about to be written */
    std::vector<HostWrite> changes_;
};

}  // namespace nextn::core
