#include "session_memory.h"

#include <algorithm>

#include "blocks.h"

namespace nextn {

Result<SessionMemory> SessionMemory::create(const Model &model) {
    const Manifest &manifest = model.manifest();
    std::vector<TensorInfo> buffers = manifest.state_tensors();
    SessionMemory memory;
    for (const TensorInfo &tensor : buffers) {
        memory.state_bytes_.emplace_back(tensor.name, static_cast<size_t>(tensor.bytes));
    }
    buffers.insert(buffers.end(), manifest.inputs.begin(), manifest.inputs.end());
    size_t total = 0;
    for (const TensorInfo &tensor : buffers) total += StateArena::padded(static_cast<size_t>(tensor.bytes));
    Result<StateArena> arena = StateArena::create(total);
    NEXTN_RETURN_IF_ERROR(arena);
    memory.arena_ = std::move(*arena);
    for (const TensorInfo &tensor : buffers) {
        uint8_t *const place = memory.arena_.take(static_cast<size_t>(tensor.bytes));
        memory.tensors_[tensor.name] = {tensor.dtype, tensor.shape, place};
    }
    for (const std::string &name : manifest.weights.names)
        memory.tensors_[name] = *model.weights().find(name);

    memory.scratch_slot_ = manifest.slots;
    memory.prefill_chunk_ = manifest.prefill_chunk;
    memory.control_ = memory.words("control");
    memory.result_ = memory.words("result");
    memory.prompt_slot_ = memory.words("prompt_slot");
    memory.prompt_tokens_ = memory.words("prompt_tokens");
    memory.prompt_count_ = memory.words("prompt_count");
    for (const int64_t batch : manifest.batch_sizes) {
        memory.slots_inputs_.emplace_back(batch, memory.words(slots_input(batch)));
    }
    memory.clear_control(memory.scratch_slot_)[control::finished.offset] = 1;
    return memory;
}

int64_t *SessionMemory::words(const std::string &name) const {
    return static_cast<int64_t *>(tensors_.at(name).data);
}

void *SessionMemory::state(const std::string &name, size_t *num_bytes) const {
    for (const auto &[buffer, bytes] : state_bytes_) {
        if (buffer != name) continue;
        if (num_bytes != nullptr) *num_bytes = bytes;
        return tensors_.at(name).data;
    }
    return nullptr;
}

int64_t *SessionMemory::clear_control(int64_t slot) {
    int64_t *const row = control_ + slot * control::width;
    std::fill_n(row, control::width, 0);
    std::fill_n(row + control::eos.offset, control::eos.length, -1);
    return row;
}

void SessionMemory::write_control(int64_t slot, const Request &request) {
    int64_t *const row = clear_control(slot);
    row[control::remaining.offset] = request.max_new_tokens;
    row[control::seed.offset] = request.seed;
    row[control::temperature.offset] = request.temperature;
    row[control::prompt_length.offset] = static_cast<int64_t>(request.prompt.size());
    std::copy(request.eos_token_ids.begin(), request.eos_token_ids.end(), row + control::eos.offset);
}

int64_t SessionMemory::write_prompt_chunk(int64_t slot, const Request &request) {
    const int64_t left = static_cast<int64_t>(request.prompt.size()) - request.prefilled;
    const int64_t count = std::min(left, prefill_chunk_);
    *prompt_slot_ = slot;
    *prompt_count_ = count;
    std::copy_n(request.prompt.begin() + request.prefilled, count, prompt_tokens_);
    std::fill(prompt_tokens_ + count, prompt_tokens_ + prefill_chunk_, 0);
    return count;
}

void SessionMemory::write_slots(int64_t batch, const std::vector<int64_t> &live) {
    for (const auto &[size, slots] : slots_inputs_) {
        if (size != batch) continue;
        std::fill(std::copy(live.begin(), live.end(), slots), slots + batch, scratch_slot_);
    }
}

}  // namespace nextn
