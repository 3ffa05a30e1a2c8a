#include "request.h"

#include <algorithm>
#include <cmath>

#include "blocks.h"

namespace nextn::core {
namespace {

constexpr double temperature_limit = 2048;

template <typename Value, typename Range>
Status refuse(const std::string &field, const Value &value, const Range &allowed) {
    return usage_error(concat("request.", field, " is ", value, ", allowed: ", allowed));
}

Status check_prompt(const nextn_request &values, const Manifest &manifest) {
    if (values.prompt == nullptr) return refuse("prompt", "NULL", "an array of token ids");
    const size_t longest = static_cast<size_t>(manifest.max_seq_len - 1);
    if (values.prompt_length < 1 || values.prompt_length > longest) {
        return refuse("prompt_length", values.prompt_length,
                      concat("1 .. ", longest, " (max_seq_len ", manifest.max_seq_len, " less one)"));
    }
    for (size_t i = 0; i < values.prompt_length; ++i) {
        if (values.prompt[i] < 0 || values.prompt[i] >= manifest.vocab_size) {
            return refuse(concat("prompt[", i, "]"), values.prompt[i],
                          concat("0 .. ", manifest.vocab_size - 1, " (vocab_size less one)"));
        }
    }
    return {};
}

Status check_sampling(const nextn_request &values) {
    if (values.max_new_tokens < 1) return refuse("max_new_tokens", values.max_new_tokens, "1 or more");
    if (values.seed < 0) return refuse("seed", values.seed, "0 or more");
    // Written so that NaN is refused.
    if (!(values.temperature >= 0 && values.temperature < temperature_limit)) {
        return refuse("temperature", values.temperature,
                      concat("0 up to, not including, ", temperature_limit));
    }
    if (values.top_k != 0) return refuse("top_k", values.top_k, "0 (not in this version)");
    if (!(values.top_p == 1)) return refuse("top_p", values.top_p, "1 (not in this version)");
    if (!(values.min_p == 0)) return refuse("min_p", values.min_p, "0 (not in this version)");
    return {};
}

int64_t fixed_point(double temperature) {
    // A tiny temperature must not turn into 0, which means greedy.
    const int64_t units = std::llround(temperature * temperature_one);
    return temperature > 0 ? std::max<int64_t>(units, 1) : 0;
}

double milliseconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

Result<std::unique_ptr<Request>> Request::make(const nextn_request &values, const Manifest &manifest) {
    NEXTN_RETURN_IF_ERROR(check_prompt(values, manifest));
    NEXTN_RETURN_IF_ERROR(check_sampling(values));
    auto request = std::make_unique<Request>();
    request->submitted = Clock::now();
    request->prompt.assign(values.prompt, values.prompt + values.prompt_length);
    const int64_t room = manifest.max_seq_len - static_cast<int64_t>(values.prompt_length);
    request->max_new_tokens = std::min(values.max_new_tokens, room);
    request->seed = values.seed;
    request->temperature = fixed_point(values.temperature);
    if (!values.ignore_eos) request->eos_token_ids = manifest.eos_token_ids;
    return request;
}

void Request::reserve_tokens() {
    tokens.reserve(static_cast<size_t>(max_new_tokens));
    accept_lens.reserve(static_cast<size_t>(max_new_tokens));
}

void Request::shrink_tokens() {
    tokens.shrink_to_fit();
    accept_lens.shrink_to_fit();
}

bool Request::stopped_by_eos() const {
    if (tokens.empty()) return false;
    return std::find(eos_token_ids.begin(), eos_token_ids.end(), tokens.back()) != eos_token_ids.end();
}

nextn_result Request::view() const {
    nextn_result result{};
    result.tokens = tokens.data();
    result.num_tokens = tokens.size();
    result.accept_lens = accept_lens.data();
    result.num_rounds = accept_lens.size();
    result.finish_reason = finish_reason;
    result.prompt_tokens = prompt.size();
    if (!tokens.empty()) {
        result.ttft_ms = milliseconds(submitted, first_token);
        result.e2e_ms = milliseconds(submitted, last_token);
    }
    return result;
}

void RequestList::push(Request *request) {
    request->list = this;
    request->next = nullptr;
    request->before = tail_;
    (tail_ == nullptr ? head_ : tail_->next) = request;
    tail_ = request;
}

Request *RequestList::pop() {
    Request *const request = head_;
    if (request != nullptr) remove(request);
    return request;
}

void RequestList::remove(Request *request) {
    if (request->list != this) return;
    (request->before == nullptr ? head_ : request->before->next) = request->next;
    (request->next == nullptr ? tail_ : request->next->before) = request->before;
    request->list = nullptr;
}

}  // namespace nextn::core
