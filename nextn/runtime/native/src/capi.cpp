#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "model.h"
#include "nextn.h"
#include "session.h"

namespace core = nextn::core;

struct nextn_model {
    std::shared_ptr<const core::Model> shared;
};

struct nextn_session {
    std::unique_ptr<core::Session> session;
    std::string last_error;
};

namespace {

using core::Result;
using core::Status;

void write_error(const Status &status, char *error, size_t error_size) {
    if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", status.text().c_str());
}

/** Runs `body`, which returns a Status; turns what it throws into one. */
template <typename Body>
Status without_exceptions(const Body &body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return core::runtime_error("out of memory");
    } catch (const std::exception &error) {
        return core::runtime_error(error.what());
    } catch (...) {
        return core::runtime_error("unknown exception");
    }
}

template <typename Body>
nextn_status report(char *error, size_t error_size, const Body &body) {
    const Status status = without_exceptions(body);
    write_error(status, error, error_size);
    return status.code();
}

template <typename Body>
nextn_status report(nextn_session *session, const Body &body) {
    if (session == nullptr) return NEXTN_USAGE;
    const Status status = without_exceptions(body);
    if (!status.ok()) session->last_error = status.text();
    return status.code();
}

/** Takes over as much of a caller's struct as it was compiled to have. */
template <typename Params>
Status read_params(const char *name, const Params *given, Params *values) {
    if (given == nullptr) return {};
    if (given->struct_size < sizeof(size_t) || given->struct_size > sizeof(Params)) {
        return core::usage_error(core::concat(name, ".struct_size is ", given->struct_size,
                                              ", allowed: at most ", sizeof(Params),
                                              "; start from the default function"));
    }
    std::memcpy(values, given, given->struct_size);
    return {};
}

Status open_model(const char *directory, const nextn_model_params *params, nextn_model **model) {
    if (directory == nullptr || model == nullptr)
        return core::usage_error("directory and model must not be NULL");
    nextn_model_params values = nextn_model_default_params();
    NEXTN_RETURN_IF_ERROR(read_params("model_params", params, &values));
    core::Model::Options options;
    if (values.torch_library != nullptr) options.torch_library = values.torch_library;
    options.verify_weights = values.verify_weights;
    auto opened = core::Model::open(directory, options);
    NEXTN_RETURN_IF_ERROR(opened);
    *model = new nextn_model{std::move(*opened)};
    return {};
}

Status create_session(nextn_model *model, const nextn_session_params *params, nextn_session **session) {
    if (model == nullptr || session == nullptr)
        return core::usage_error("model and session must not be NULL");
    nextn_session_params values = nextn_session_default_params();
    NEXTN_RETURN_IF_ERROR(read_params("session_params", params, &values));
    nextn_executor executor{};
    if (values.executor != nullptr) {
        NEXTN_RETURN_IF_ERROR(read_params("executor", values.executor, &executor));
        values.executor = &executor;
    }
    auto created = core::Session::create(model->shared, values);
    NEXTN_RETURN_IF_ERROR(created);
    *session = new nextn_session{std::move(*created), {}};
    return {};
}

Status submit(nextn_session *session, const nextn_request *request, uint64_t *id) {
    if (request == nullptr) return core::usage_error("request must not be NULL");
    nextn_request values = nextn_request_default();
    NEXTN_RETURN_IF_ERROR(read_params("request", request, &values));
    const Result<uint64_t> submitted = session->session->submit(values);
    NEXTN_RETURN_IF_ERROR(submitted);
    if (id != nullptr) *id = *submitted;
    return {};
}

using Advance = Status (core::Session::*)(const core::Session::TokenSink &, bool *);

nextn_status advance(nextn_session *session, Advance part, nextn_token_callback callback, void *user,
                     bool *busy) {
    bool left = false;
    const nextn_status status =
        report(session, [&] { return ((*session->session).*part)({callback, user}, &left); });
    if (busy != nullptr) *busy = left;
    return status;
}

}  // namespace

const char *nextn_version(void) {
    return NEXTN_VERSION;
}

nextn_model_params nextn_model_default_params(void) {
    return {sizeof(nextn_model_params), nullptr, false};
}

nextn_session_params nextn_session_default_params(void) {
    return {sizeof(nextn_session_params), 0, 16384, true, false, nullptr};
}

nextn_request nextn_request_default(void) {
    return {sizeof(nextn_request), nullptr, 0, 128, 0, 0.0, 1.0, 0.0, 0, false};
}

nextn_status nextn_model_open(const char *directory, const nextn_model_params *params, nextn_model **model,
                              char *error, size_t error_size) {
    if (model != nullptr) *model = nullptr;
    return report(error, error_size, [&] { return open_model(directory, params, model); });
}

void nextn_model_close(nextn_model *model) {
    delete model;
}

nextn_model_info nextn_model_get_info(const nextn_model *model) {
    nextn_model_info info{};
    if (model == nullptr) return info;
    const core::Manifest &manifest = model->shared->manifest();
    info.num_steps = static_cast<int32_t>(manifest.num_steps);
    info.slots = static_cast<int32_t>(manifest.slots);
    info.num_graphs = static_cast<int32_t>(manifest.graphs.size());
    info.vocab_size = manifest.vocab_size;
    info.max_seq_len = manifest.max_seq_len;
    info.prefill_chunk = manifest.prefill_chunk;
    info.weight_bytes = model->shared->weights().bytes();
    info.state_bytes = static_cast<uint64_t>(model->shared->state_bytes());
    return info;
}

const char *nextn_model_manifest(const nextn_model *model) {
    return model == nullptr ? nullptr : model->shared->manifest().text.c_str();
}

nextn_status nextn_session_create(nextn_model *model, const nextn_session_params *params,
                                  nextn_session **session, char *error, size_t error_size) {
    if (session != nullptr) *session = nullptr;
    return report(error, error_size, [&] { return create_session(model, params, session); });
}

void nextn_session_destroy(nextn_session *session) {
    if (session != nullptr && session->session->running()) return;
    delete session;
}

const char *nextn_session_last_error(const nextn_session *session) {
    return session == nullptr ? "session is NULL" : session->last_error.c_str();
}

nextn_status nextn_session_submit(nextn_session *session, const nextn_request *request, uint64_t *id) {
    return report(session, [&] { return submit(session, request, id); });
}

nextn_status nextn_session_run(nextn_session *session, nextn_token_callback callback, void *user) {
    return report(session, [&] { return session->session->run({callback, user}); });
}

nextn_status nextn_session_run_until_finished(nextn_session *session, nextn_token_callback callback,
                                              void *user, bool *busy) {
    return advance(session, &core::Session::run_until_finished, callback, user, busy);
}

nextn_status nextn_session_run_for(nextn_session *session, double milliseconds, nextn_token_callback callback,
                                   void *user, bool *busy) {
    bool left = false;
    const nextn_status status = report(session, [&]() -> Status {
        // Written so that NaN is refused; a day keeps the conversion below in range.
        if (!(milliseconds >= 0 && milliseconds <= 86400000.0)) {
            return core::usage_error(
                core::concat("milliseconds is ", milliseconds, ", allowed: 0 .. 86400000"));
        }
        const auto limit = std::chrono::duration_cast<core::Clock::duration>(
            std::chrono::duration<double, std::milli>(milliseconds));
        return session->session->run_for(limit, {callback, user}, &left);
    });
    if (busy != nullptr) *busy = left;
    return status;
}

nextn_status nextn_session_turn(nextn_session *session, nextn_token_callback callback, void *user,
                                bool *busy) {
    return advance(session, &core::Session::turn, callback, user, busy);
}

nextn_status nextn_session_cancel(nextn_session *session, uint64_t id) {
    return report(session, [&] { return session->session->cancel(id); });
}

void nextn_session_interrupt(nextn_session *session) {
    if (session != nullptr) session->session->interrupt();
}

nextn_status nextn_session_result(nextn_session *session, uint64_t id, nextn_result *result) {
    return report(session, [&]() -> Status {
        const core::Request *request = session->session->find(id);
        if (request == nullptr || result == nullptr) {
            return core::usage_error(core::concat("no request has id ", id, ", or result is NULL"));
        }
        *result = request->view();
        return {};
    });
}

bool nextn_session_next_finished(nextn_session *session, uint64_t *id) {
    uint64_t finished = 0;
    if (session == nullptr || !session->session->next_finished(&finished)) return false;
    if (id != nullptr) *id = finished;
    return true;
}

void nextn_session_release(nextn_session *session, uint64_t id) {
    if (session != nullptr) session->session->release(id);
}

nextn_metrics nextn_session_get_metrics(const nextn_session *session) {
    return session == nullptr ? nextn_metrics{} : session->session->metrics();
}

size_t nextn_session_round_times(const nextn_session *session, nextn_round_times *times, size_t capacity) {
    if (session == nullptr || times == nullptr) return 0;
    return session->session->round_log().copy(times, capacity);
}

void *nextn_session_state(nextn_session *session, const char *name, size_t *num_bytes) {
    if (num_bytes != nullptr) *num_bytes = 0;
    if (session == nullptr || name == nullptr) return nullptr;
    const core::BoundTensor *const buffer = session->session->state(name);
    if (buffer == nullptr) return nullptr;
    if (num_bytes != nullptr) *num_bytes = buffer->bytes();
    const nextn_status status = report(session, [&] { return session->session->read_state(name); });
    return status == NEXTN_OK ? buffer->data : nullptr;
}
