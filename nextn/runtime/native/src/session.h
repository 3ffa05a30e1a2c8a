#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "graph_set.h"
#include "model.h"
#include "nextn.h"
#include "request.h"
#include "round_log.h"
#include "session_memory.h"
#include "status.h"

namespace nextn::core {

/**
 * Decodes requests together. A turn runs at most one prompt chunk of one request, so that a long prompt does
 * not hold up the others, and then one round of every request whose prompt is done.
 */
class Session {
  public:
    struct TokenSink {
        nextn_token_callback callback;
        void *user;
    };

    static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Model> model,
                                                   const nextn_session_params &params);

    Result<uint64_t> submit(const nextn_request &values);
    Status run(const TokenSink &sink);
    Status run_until_finished(const TokenSink &sink, bool *busy);
    /** As `run_until_finished`, and also returns after the turn in which `limit` passes. */
    Status run_for(Clock::duration limit, const TokenSink &sink, bool *busy);
    Status turn(const TokenSink &sink, bool *busy);
    /** Ends a request that is queued, prefilling or decoding; one that is finished stays as it is. */
    Status cancel(uint64_t id);
    bool running() const { return running_.load(std::memory_order_relaxed); }
    void interrupt() { interrupted_.store(true, std::memory_order_relaxed); }

    /** Null for an unknown id. */
    const Request *find(uint64_t id) const;
    bool next_finished(uint64_t *id);
    void release(uint64_t id);

    const nextn_metrics &metrics() const { return metrics_; }
    const RoundLog &round_log() const { return round_log_; }
    /** Null if there is no such state buffer. */
    const BoundTensor *state(const std::string &name) const { return memory_->state(name); }
    /** Makes its memory current. */
    Status read_state(const std::string &name);

  private:
    Session(std::shared_ptr<const Model> model, std::unique_ptr<SessionMemory> memory, GraphSet graphs,
            int64_t slots, size_t round_samples);

    Status guarded_turn(const TokenSink &sink, bool *busy);
    Status prefill_chunk(const TokenSink &sink);
    Status start_decoding(const TokenSink &sink);
    Status round(const TokenSink &sink);
    Status record(int64_t slot, bool first_token);
    void deliver(int64_t slot, const TokenSink &sink);
    void finish(Request *request, nextn_finish_reason reason);
    void abort_all();
    bool assign_slot();
    Status take_interrupt();

    // Graphs hold pointers into memory, and memory into the model.
    std::shared_ptr<const Model> model_;
    std::unique_ptr<SessionMemory> memory_;
    GraphSet graphs_;

    std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
    uint64_t last_id_ = 0;
    RequestList queue_;
    RequestList finished_;
    std::vector<Request *> slots_; /**< the request in each slot, or null */
    std::vector<int64_t> live_;    /**< slots whose prompt is done */
    int64_t prefilling_ = no_slot; /**< slot whose prompt is under way */

    nextn_metrics metrics_{};
    RoundLog round_log_;
    std::atomic<bool> interrupted_{false};
    std::atomic<bool> running_{false};
    Status failure_; /**< what made the state unusable */

    static constexpr int64_t no_slot = -1;
};

}  // namespace nextn::core
