#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "manifest.h"
#include "nextn.h"
#include "status.h"

namespace nextn::core {

using Clock = std::chrono::steady_clock;

/** A request and all that comes of it. Room for its tokens is reserved when it gets a slot. */
struct Request {
    uint64_t id = 0;
    std::vector<int64_t> prompt;
    int64_t max_new_tokens = 0;
    int64_t seed = 0;
    int64_t temperature = 0; /**< in units of 1 / temperature_one */
    std::vector<int64_t> eos_token_ids;

    int64_t prefilled = 0; /**< prompt tokens already run */
    std::vector<int64_t> tokens;
    size_t delivered = 0; /**< tokens the callback has seen */
    std::vector<uint8_t> accept_lens;
    bool device_finished = false;
    nextn_finish_reason finish_reason = NEXTN_UNFINISHED;

    Clock::time_point submitted;
    Clock::time_point first_token;
    Clock::time_point last_token;

    Request *next = nullptr; /**< in the list that holds it */
    Request *before = nullptr;
    class RequestList *list = nullptr; /**< the list that holds it, if one does */

    /** Refuses values that graphs are not defined for. */
    static Result<std::unique_ptr<Request>> make(const nextn_request &values, const Manifest &manifest);

    void reserve_tokens();
    /** Gives back what was reserved and not used. */
    void shrink_tokens();
    bool stopped_by_eos() const;
    nextn_result view() const;
};

/** First in, first out; linked through the requests, so that it never allocates. Every call takes the same
 * time, however many requests it holds. */
class RequestList {
  public:
    bool empty() const { return head_ == nullptr; }
    Request *front() const { return head_; }
    void push(Request *request);
    Request *pop();
    /** Nothing if another list, or none, holds it. */
    void remove(Request *request);

  private:
    Request *head_ = nullptr;
    Request *tail_ = nullptr;
};

}  // namespace nextn::core
