#include "session.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "blocks.h"

namespace nextn::core {
namespace {

constexpr int32_t max_round_samples = 1 << 24;

static_assert(std::atomic<bool>::is_always_lock_free, "interrupt is called from signal handlers");

Status check_params(const nextn_session_params &params, const Manifest &manifest) {
    if (params.slots < 0 || params.slots > manifest.slots) {
        return usage_error(concat("slots is ", params.slots, ", allowed: 0 .. ", manifest.slots));
    }
    if (params.round_samples < 0 || params.round_samples > max_round_samples) {
        return usage_error(
            concat("round_samples is ", params.round_samples, ", allowed: 0 .. ", max_round_samples));
    }
    const bool speculating = params.speculation && manifest.num_steps > 0;
    if (params.phases && !speculating) {
        return usage_error("phases is true, allowed only with speculation (num_steps >= 1)");
    }
    return {};
}

RoundMode round_mode(const nextn_session_params &params, const Manifest &manifest) {
    if (!params.speculation || manifest.num_steps == 0) return RoundMode::plain;
    return params.phases ? RoundMode::phases : RoundMode::fused;
}

class RunningMark {
  public:
    explicit RunningMark(std::atomic<bool> *running) : running_(running), taken_(!running->exchange(true)) {}
    RunningMark(const RunningMark &) = delete;
    ~RunningMark() {
        if (taken_) running_->store(false);
    }

    /** False if the session was running already. */
    bool taken() const { return taken_; }

  private:
    std::atomic<bool> *running_;
    bool taken_;
};

Status already_running() {
    return usage_error("the session is running: called from its token callback or another thread");
}

}  // namespace

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Model> model,
                                                 const nextn_session_params &params) {
    const Manifest &manifest = model->manifest();
    NEXTN_RETURN_IF_ERROR(check_params(params, manifest));
    const int64_t slots = params.slots == 0 ? manifest.slots : params.slots;
    Result<std::unique_ptr<Backend>> backend = model->make_backend(params.executor);
    NEXTN_RETURN_IF_ERROR(backend);
    Result<std::unique_ptr<SessionMemory>> memory = SessionMemory::create(*model);
    NEXTN_RETURN_IF_ERROR(memory);
    Result<GraphSet> graphs =
        GraphSet::load(*model, std::move(*backend), memory->get(), round_mode(params, manifest), slots);
    NEXTN_RETURN_IF_ERROR(graphs);
    return std::unique_ptr<Session>(new Session(std::move(model), std::move(*memory), std::move(*graphs),
                                                slots, static_cast<size_t>(params.round_samples)));
}

Session::Session(std::shared_ptr<const Model> model, std::unique_ptr<SessionMemory> memory, GraphSet graphs,
                 int64_t slots, size_t round_samples)
    : model_(std::move(model)),
      memory_(std::move(memory)),
      graphs_(std::move(graphs)),
      slots_(static_cast<size_t>(slots), nullptr),
      round_log_(round_samples) {
    live_.reserve(slots_.size());
}

Result<uint64_t> Session::submit(const nextn_request &values) {
    if (running()) return already_running();
    Result<std::unique_ptr<Request>> request = Request::make(values, model_->manifest());
    NEXTN_RETURN_IF_ERROR(request);
    Request *const queued = request->get();
    queued->id = last_id_ + 1;
    requests_.emplace(queued->id, std::move(*request));
    queue_.push(queued);
    return ++last_id_;
}

Status Session::run(const TokenSink &sink) {
    for (bool busy = true; busy;) NEXTN_RETURN_IF_ERROR(turn(sink, &busy));
    return {};
}

Status Session::run_until_finished(const TokenSink &sink, bool *busy) {
    do NEXTN_RETURN_IF_ERROR(turn(sink, busy));
    while (*busy && finished_.empty());
    return {};
}

Status Session::run_for(Clock::duration limit, const TokenSink &sink, bool *busy) {
    const Clock::time_point end = Clock::now() + limit;
    do NEXTN_RETURN_IF_ERROR(turn(sink, busy));
    while (*busy && finished_.empty() && Clock::now() < end);
    return {};
}

Status Session::turn(const TokenSink &sink, bool *busy) {
    const RunningMark mark(&running_);
    if (!mark.taken()) return already_running();
    if (!failure_.ok()) return failure_;
    Status status;
    try {
        status = guarded_turn(sink, busy);
    } catch (const std::exception &error) {
        status = runtime_error(concat("exception during a turn: ", error.what()));
    } catch (...) {
        status = runtime_error("exception during a turn");
    }
    if (status.ok()) return status;
    *busy = false;
    if (status.code() != NEXTN_INTERRUPTED) failure_ = status;
    abort_all();
    return status;
}

Status Session::guarded_turn(const TokenSink &sink, bool *busy) {
    NEXTN_RETURN_IF_ERROR(take_interrupt());
    if (prefilling_ != no_slot || assign_slot()) NEXTN_RETURN_IF_ERROR(prefill_chunk(sink));
    if (!live_.empty()) NEXTN_RETURN_IF_ERROR(round(sink));
    *busy = prefilling_ != no_slot || !live_.empty() || !queue_.empty();
    return take_interrupt();
}

Status Session::take_interrupt() {
    if (!interrupted_.exchange(false, std::memory_order_relaxed)) return {};
    return {NEXTN_INTERRUPTED, "interrupted"};
}

/** Moves the first queued request into a free slot, if there are both. */
bool Session::assign_slot() {
    const auto free = std::find(slots_.begin(), slots_.end(), nullptr);
    if (queue_.empty() || free == slots_.end()) return false;
    *free = queue_.pop();
    (*free)->reserve_tokens();
    prefilling_ = free - slots_.begin();
    memory_->write_control(prefilling_, **free);
    return true;
}

Status Session::prefill_chunk(const TokenSink &sink) {
    Request &request = *slots_[static_cast<size_t>(prefilling_)];
    const int64_t count = memory_->write_prompt_chunk(prefilling_, request);
    request.prefilled += count;
    const bool last_chunk = request.prefilled == static_cast<int64_t>(request.prompt.size());
    NEXTN_RETURN_IF_ERROR(graphs_.prefill(last_chunk, &metrics_));
    return last_chunk ? start_decoding(sink) : Status();
}

/** After the last chunk: takes the first token, and has the first drafts made. */
Status Session::start_decoding(const TokenSink &sink) {
    const int64_t slot = std::exchange(prefilling_, no_slot);
    NEXTN_RETURN_IF_ERROR(record(slot, true));
    if (!slots_[static_cast<size_t>(slot)]->device_finished) NEXTN_RETURN_IF_ERROR(graphs_.seed(&metrics_));
    deliver(slot, sink);
    if (slots_[static_cast<size_t>(slot)] != nullptr) live_.push_back(slot);
    return {};
}

Status Session::round(const TokenSink &sink) {
    const Clock::time_point start = Clock::now();
    nextn_round_times times{};
    const int64_t batch = graphs_.batch_for(live_.size());
    memory_->write_slots(batch, live_);
    NEXTN_RETURN_IF_ERROR(graphs_.round(batch, &metrics_, &times));
    for (const int64_t slot : live_) NEXTN_RETURN_IF_ERROR(record(slot, false));

    for (const int64_t slot : live_) deliver(slot, sink);
    const auto freed = [&](int64_t slot) { return slots_[static_cast<size_t>(slot)] == nullptr; };
    live_.erase(std::remove_if(live_.begin(), live_.end(), freed), live_.end());
    const std::chrono::duration<float, std::micro> wall = Clock::now() - start;
    times.host_us = std::max(0.0f, wall.count() - times.graph_us);
    round_log_.add(times);
    return {};
}

/** Takes over what a graph wrote for one slot; a graph that breaks the protocol must not break the host. */
Status Session::record(int64_t slot, bool first_token) {
    Request &request = *slots_[static_cast<size_t>(slot)];
    const int64_t *const row = memory_->result_block() + slot * result::width;
    const int64_t count = row[result::out_count.offset];
    const int64_t accepted = row[result::accepted.offset];
    const int64_t room = request.max_new_tokens - static_cast<int64_t>(request.tokens.size());
    const int64_t window = first_token ? 1 : model_->manifest().num_steps + 1;
    if (count < 1 || count > std::min(window, room) || accepted < (first_token ? -1 : 0) ||
        accepted >= window) {
        return runtime_error("graph wrote an impossible result")
            .expected(concat("out_count in 1 .. ", std::min(window, room), ", accepted below ", window))
            .found(concat("out_count ", count, ", accepted ", accepted));
    }
    const int64_t *const tokens = row + result::out.offset;
    for (int64_t i = 0; i < count; ++i) {
        if (tokens[i] < 0 || tokens[i] >= model_->manifest().vocab_size) {
            return runtime_error("graph emitted an impossible token").found(tokens[i]);
        }
        request.tokens.push_back(tokens[i]);
    }
    request.device_finished = row[result::finished.offset] != 0;
    if (!request.device_finished && count == room) return runtime_error("graph went past its token limit");
    request.last_token = Clock::now();
    if (first_token) {
        request.first_token = request.last_token;
        return {};
    }
    request.accept_lens.push_back(static_cast<uint8_t>(accepted + 1));
    ++metrics_.num_row_rounds;
    metrics_.num_accepted += static_cast<uint64_t>(accepted);
    for (int64_t i = 0; i < accepted; ++i) ++metrics_.accepted_at_least[i];
    return {};
}

/** Hands new tokens to the caller, and frees the slot of a request that ends here. */
void Session::deliver(int64_t slot, const TokenSink &sink) {
    Request *const request = slots_[static_cast<size_t>(slot)];
    const size_t first = std::exchange(request->delivered, request->tokens.size());
    const bool wanted =
        sink.callback == nullptr ||
        sink.callback(sink.user, request->id, &request->tokens[first], request->tokens.size() - first);
    if (wanted && !request->device_finished) return;
    slots_[static_cast<size_t>(slot)] = nullptr;
    const nextn_finish_reason ended = request->stopped_by_eos() ? NEXTN_STOP : NEXTN_LENGTH;
    finish(request, request->device_finished ? ended : NEXTN_ABORT);
}

void Session::finish(Request *request, nextn_finish_reason reason) {
    request->shrink_tokens();
    request->finish_reason = reason;
    finished_.push(request);
}

Status Session::cancel(uint64_t id) {
    if (running()) return already_running();
    const auto place = requests_.find(id);
    if (place == requests_.end()) return usage_error(concat("no request has id ", id));
    Request *const request = place->second.get();
    if (request->finish_reason != NEXTN_UNFINISHED) return {};
    queue_.remove(request);
    const auto held = std::find(slots_.begin(), slots_.end(), request);
    if (held != slots_.end()) {
        const int64_t slot = held - slots_.begin();
        *held = nullptr;
        live_.erase(std::remove(live_.begin(), live_.end(), slot), live_.end());
        if (prefilling_ == slot) prefilling_ = no_slot;
    }
    finish(request, NEXTN_ABORT);
    return {};
}

void Session::abort_all() {
    for (Request *&request : slots_) {
        if (request != nullptr) finish(std::exchange(request, nullptr), NEXTN_ABORT);
    }
    while (!queue_.empty()) finish(queue_.pop(), NEXTN_ABORT);
    live_.clear();
    prefilling_ = no_slot;
}

Status Session::read_state(const std::string &name) {
    const Status status = graphs_.read(name);
    if (!status.ok()) failure_ = status;
    return status;
}

const Request *Session::find(uint64_t id) const {
    const auto place = requests_.find(id);
    return place == requests_.end() ? nullptr : place->second.get();
}

bool Session::next_finished(uint64_t *id) {
    if (finished_.empty()) return false;
    *id = finished_.pop()->id;
    return true;
}

void Session::release(uint64_t id) {
    const auto place = requests_.find(id);
    if (running() || place == requests_.end() || place->second->finish_reason == NEXTN_UNFINISHED) return;
    finished_.remove(place->second.get());
    requests_.erase(place);
}

}  // namespace nextn::core
