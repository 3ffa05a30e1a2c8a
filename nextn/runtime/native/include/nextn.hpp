/* C++17 face of nextn.h: objects that free themselves, and Result<T> instead of status codes. Header only.
 *
 *   auto model = nextn::Model::open("artifact");
 *   if (!model) { std::puts(model.error().text.c_str()); return 1; }
 *   auto session = model->create_session();
 *   auto id = session->submit(request);
 *   session->run([](uint64_t, const int64_t *tokens, size_t count) { return true; });
 */
#ifndef NEXTN_HPP
#define NEXTN_HPP

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nextn.h"

namespace nextn {

struct Error {
    nextn_status code = NEXTN_OK;
    std::string text;
};

/** A value, or the error that took its place. */
template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : content_(std::in_place_index<1>, std::move(error)) {}

    bool ok() const { return content_.index() == 0; }
    explicit operator bool() const { return ok(); }
    T &operator*() { return std::get<0>(content_); }
    T *operator->() { return &std::get<0>(content_); }
    const Error &error() const { return std::get<1>(content_); }

  private:
    std::variant<T, Error> content_;
};

/** Success has no value of its own. */
struct Done {};

class Session {
  public:
    /** Queues a copy of the request; the value is its id. */
    Result<uint64_t> submit(const nextn_request &request) {
        uint64_t id = 0;
        if (const nextn_status code = nextn_session_submit(handle_.get(), &request, &id))
            return failure(code);
        return id;
    }

    Result<Done> run() { return done(nextn_session_run(handle_.get(), nullptr, nullptr)); }

    /** `on_tokens(id, tokens, count)` returns whether that request goes on. */
    template <typename OnTokens>
    Result<Done> run(OnTokens on_tokens) {
        return done(nextn_session_run(handle_.get(), call<OnTokens>, &on_tokens));
    }

    /** Until a finished request waits in `next_finished`; the value says whether work is left. */
    Result<bool> run_until_finished() { return advance(nextn_session_run_until_finished); }
    template <typename OnTokens>
    Result<bool> run_until_finished(OnTokens on_tokens) {
        return advance(nextn_session_run_until_finished, call<OnTokens>, &on_tokens);
    }

    /** As `run_until_finished`, and also returns after the turn in which `milliseconds` pass. */
    Result<bool> run_for(double milliseconds) { return run_for(milliseconds, nullptr, nullptr); }
    template <typename OnTokens>
    Result<bool> run_for(double milliseconds, OnTokens on_tokens) {
        return run_for(milliseconds, call<OnTokens>, &on_tokens);
    }

    /** One scheduling turn; the value says whether work is left. */
    Result<bool> turn() { return advance(nextn_session_turn); }
    template <typename OnTokens>
    Result<bool> turn(OnTokens on_tokens) {
        return advance(nextn_session_turn, call<OnTokens>, &on_tokens);
    }

    /** Between runs: the request is finished with NEXTN_ABORT and the tokens it has. */
    Result<Done> cancel(uint64_t id) { return done(nextn_session_cancel(handle_.get(), id)); }

    void interrupt() { nextn_session_interrupt(handle_.get()); }

    /** Pointers in the value last until the request is released or the session ends. */
    Result<nextn_result> result(uint64_t id) {
        nextn_result value;
        if (const nextn_status code = nextn_session_result(handle_.get(), id, &value)) return failure(code);
        return value;
    }

    std::optional<uint64_t> next_finished() {
        uint64_t id = 0;
        return nextn_session_next_finished(handle_.get(), &id) ? std::optional<uint64_t>(id) : std::nullopt;
    }

    void release(uint64_t id) { nextn_session_release(handle_.get(), id); }
    nextn_metrics metrics() const { return nextn_session_get_metrics(handle_.get()); }

    std::vector<nextn_round_times> round_times(size_t capacity) const {
        std::vector<nextn_round_times> times(capacity);
        times.resize(nextn_session_round_times(handle_.get(), times.data(), capacity));
        return times;
    }

    nextn_session *get() const { return handle_.get(); }

  private:
    friend class Model;

    struct Destroy {
        void operator()(nextn_session *session) const { nextn_session_destroy(session); }
    };

    explicit Session(nextn_session *session) : handle_(session) {}

    using Part = nextn_status (*)(nextn_session *, nextn_token_callback, void *, bool *);

    Result<bool> advance(Part part, nextn_token_callback callback = nullptr, void *user = nullptr) {
        bool busy = false;
        if (const nextn_status code = part(handle_.get(), callback, user, &busy)) return failure(code);
        return busy;
    }

    Result<bool> run_for(double milliseconds, nextn_token_callback callback, void *user) {
        bool busy = false;
        const nextn_status code = nextn_session_run_for(handle_.get(), milliseconds, callback, user, &busy);
        if (code != NEXTN_OK) return failure(code);
        return busy;
    }

    template <typename OnTokens>
    static bool call(void *user, uint64_t id, const int64_t *tokens, size_t count) {
        return (*static_cast<OnTokens *>(user))(id, tokens, count);
    }

    Error failure(nextn_status code) const { return {code, nextn_session_last_error(handle_.get())}; }

    Result<Done> done(nextn_status code) const {
        if (code != NEXTN_OK) return failure(code);
        return Done{};
    }

    std::unique_ptr<nextn_session, Destroy> handle_;
};

class Model {
  public:
    static Result<Model> open(const std::string &directory,
                              const nextn_model_params &params = nextn_model_default_params()) {
        nextn_model *model = nullptr;
        char text[1024] = "";
        const nextn_status code = nextn_model_open(directory.c_str(), &params, &model, text, sizeof text);
        if (code != NEXTN_OK) return Error{code, text};
        return Model(model);
    }

    Result<Session> create_session(const nextn_session_params &params = nextn_session_default_params()) {
        nextn_session *session = nullptr;
        char text[1024] = "";
        const nextn_status code = nextn_session_create(handle_.get(), &params, &session, text, sizeof text);
        if (code != NEXTN_OK) return Error{code, text};
        return Session(session);
    }

    nextn_model_info info() const { return nextn_model_get_info(handle_.get()); }
    const char *manifest() const { return nextn_model_manifest(handle_.get()); }
    nextn_model *get() const { return handle_.get(); }

  private:
    struct Close {
        void operator()(nextn_model *model) const { nextn_model_close(model); }
    };

    explicit Model(nextn_model *model) : handle_(model) {}

    std::unique_ptr<nextn_model, Close> handle_;
};

}  // namespace nextn

#endif
