#include "session_memory.h"

#include <algorithm>

#include "blocks.h"

namespace nextn::core {
namespace {

/** Before a launch: two control rows at first, three prompt inputs, one input of slots. */
constexpr size_t most_changes = 6;

}  // namespace

Result<std::unique_ptr<SessionMemory>> SessionMemory::create(const Model &model) {
    std::unique_ptr<SessionMemory> memory(new SessionMemory);
    NEXTN_RETURN_IF_ERROR(memory->allocate(model));
    const Manifest &manifest = model.manifest();
    memory->scratch_slot_ = manifest.slots;
    memory->prefill_chunk_ = manifest.prefill_chunk;
    memory->control_ = memory->host_buffer("control");
    memory->result_ = memory->host_buffer("result").words;
    memory->prompt_slot_ = memory->host_buffer("prompt_slot");
    memory->prompt_tokens_ = memory->host_buffer("prompt_tokens");
    memory->prompt_count_ = memory->host_buffer("prompt_count");
    for (const int64_t batch : manifest.batch_sizes) {
        memory->slots_inputs_.emplace_back(batch, memory->host_buffer(slots_input(batch)));
    }
    memory->values_.reserve(static_cast<size_t>(std::max(manifest.prefill_chunk, manifest.slots)));
    memory->changes_.reserve(most_changes);
    memory->clear_control(memory->scratch_slot_)[control::finished.offset] = 1;
    memory->note_control(memory->scratch_slot_);
    return memory;
}

/** Room for state and inputs, zero-filled, beside the weights where they are mapped. */
Status SessionMemory::allocate(const Model &model) {
    const Manifest &manifest = model.manifest();
    std::vector<TensorInfo> buffers = manifest.state_tensors();
    buffers.insert(buffers.end(), manifest.inputs.begin(), manifest.inputs.end());
    size_t total = 0;
    for (const TensorInfo &tensor : buffers) total += StateArena::padded(static_cast<size_t>(tensor.bytes));
    Result<StateArena> arena = StateArena::create(total);
    NEXTN_RETURN_IF_ERROR(arena);
    arena_ = std::move(*arena);
    for (const TensorInfo &tensor : buffers) {
        uint8_t *const place = arena_.take(static_cast<size_t>(tensor.bytes));
        tensors_[tensor.name] = {tensor.kind, tensor.dtype, tensor.shape, place};
    }
    for (const std::string &name : manifest.weights.names) tensors_[name] = *model.weights().find(name);
    return {};
}

SessionMemory::HostBuffer SessionMemory::host_buffer(const std::string &name) const {
    const auto place = tensors_.find(name);
    return {&place->first, static_cast<int64_t *>(place->second.data)};
}

const BoundTensor *SessionMemory::state(const std::string &name) const {
    const auto place = tensors_.find(name);
    if (place == tensors_.end() || place->second.kind != TensorKind::state) return nullptr;
    return &place->second;
}

int64_t *SessionMemory::clear_control(int64_t slot) {
    int64_t *const row = control_.words + slot * control::width;
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
    note_control(slot);
}

void SessionMemory::note_control(int64_t slot) {
    constexpr size_t row_bytes = control::width * sizeof(int64_t);
    changes_.push_back({control_.name, static_cast<size_t>(slot) * row_bytes, row_bytes});
}

int64_t SessionMemory::write_prompt_chunk(int64_t slot, const Request &request) {
    const int64_t left = static_cast<int64_t>(request.prompt.size()) - request.prefilled;
    const int64_t count = std::min(left, prefill_chunk_);
    const auto first = request.prompt.begin() + request.prefilled;
    values_.assign(first, first + count);
    values_.resize(static_cast<size_t>(prefill_chunk_), 0);
    write_input(prompt_tokens_, values_.data(), values_.size());
    write_input(prompt_slot_, &slot, 1);
    write_input(prompt_count_, &count, 1);
    return count;
}

void SessionMemory::write_slots(int64_t batch, const std::vector<int64_t> &live) {
    values_.assign(live.begin(), live.end());
    values_.resize(static_cast<size_t>(batch), scratch_slot_);
    for (const auto &[size, slots] : slots_inputs_) {
        if (size == batch) write_input(slots, values_.data(), values_.size());
    }
}

/** Only the host writes inputs, so one that stays as it was needs no copy to a device. */
void SessionMemory::write_input(const HostBuffer &input, const int64_t *values, size_t count) {
    if (std::equal(values, values + count, input.words)) return;
    std::copy_n(values, count, input.words);
    changes_.push_back({input.name, 0, count * sizeof(int64_t)});
}

}  // namespace nextn::core
