// A C++ host of `.om` graphs on the fake CANN, whose models play a script: `om_program ARTIFACT
// [FUNCTION:NTH]... [threads]`
//
// Decodes three requests in two slots, once for each call of ACL that is to fail and once without; with
// `threads` once more, in a session that is made on one thread, runs on another and is closed on a third.
// Prints a line for each: what went wrong or the tokens, and what ACL has not got back.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "nextn.h"

extern "C" {
struct fake_cann_buffer {
    void *place;
    uint64_t bytes;
};
typedef int32_t (*fake_cann_model_executor)(void *, const char *, const fake_cann_buffer *, size_t,
                                            const fake_cann_buffer *, size_t);
void fake_cann_set_model_executor(fake_cann_model_executor executor, void *user);
void fake_cann_fail(const char *function, uint32_t nth);
int32_t fake_cann_is_initialized();
uint64_t fake_cann_live_allocations();
uint64_t fake_cann_live_streams();
uint64_t fake_cann_live_models();
uint64_t fake_cann_live_model_objects();
uint64_t fake_cann_live_contexts();
}

namespace {

constexpr int64_t num_steps = 2;
constexpr size_t control_width = 32, result_width = 16;
enum ControlColumn { pos = 0, remaining = 2, finished = 3, prompt_length = 10 };
enum ResultColumn { out = 0, out_count = 9, accepted = 10, result_finished = 11 };

/** The int64 words of a model's input. The last five are slots_b1, slots_b2 and the three of the prompt. */
int64_t *words(const fake_cann_buffer &buffer) {
    return static_cast<int64_t *>(buffer.place);
}

int64_t *block(const fake_cann_buffer *inputs, size_t count, size_t width) {
    constexpr size_t rows = 3;
    for (size_t i = 0; i < count; ++i) {
        if (inputs[i].bytes == rows * width * sizeof(int64_t)) return words(inputs[i]);
    }
    std::abort();
}

/** Tokens count up from the prompt's length; how many drafts are accepted follows from what remains. */
void emit(int64_t *control, int64_t *result, int64_t wanted, int64_t num_accepted) {
    const int64_t count = std::min(wanted, control[remaining]);
    std::memset(result, 0, result_width * sizeof(int64_t));
    for (int64_t i = 0; i < count; ++i) result[out + i] = control[pos] + i;
    control[pos] += count;
    control[remaining] -= count;
    control[finished] = result[result_finished] = control[remaining] == 0;
    result[out_count] = count;
    result[accepted] = num_accepted;
}

int32_t play(void *, const char *path, const fake_cann_buffer *inputs, size_t count, const fake_cann_buffer *,
             size_t) {
    int64_t *const control = block(inputs, count, control_width);
    int64_t *const result = block(inputs, count, result_width);
    const fake_cann_buffer *const last = inputs + count - 5;
    if (std::strstr(path, "prefill") != nullptr) {
        const int64_t slot = *words(last[2]);
        int64_t *const row = control + slot * control_width;
        row[pos] += *words(last[4]);
        if (row[pos] == row[prompt_length]) emit(row, result + slot * result_width, 1, -1);
    } else if (std::strstr(path, "round") != nullptr) {
        const int64_t batch = std::strstr(path, "b2") != nullptr ? 2 : 1;
        for (int64_t i = 0; i < batch; ++i) {
            const int64_t slot = words(last[batch - 1])[i];
            int64_t *const row = control + slot * control_width;
            if (row[finished]) continue;
            const int64_t num_accepted = row[remaining] % (num_steps + 1);
            emit(row, result + slot * result_width, num_accepted + 1, num_accepted);
        }
    }
    return 0;
}

std::string failure(nextn_session *session) {
    return nextn_session_last_error(session);
}

/** The tokens of all requests, or what went wrong. */
std::string decode(nextn_session *session) {
    int64_t prompt[40] = {};
    constexpr size_t lengths[] = {3, 40, 17};
    for (const size_t length : lengths) {
        nextn_request request = nextn_request_default();
        request.prompt = prompt;
        request.prompt_length = length;
        request.max_new_tokens = 9;
        request.ignore_eos = true;
        if (nextn_session_submit(session, &request, nullptr)) return failure(session);
    }
    if (nextn_session_run(session, nullptr, nullptr)) return failure(session);
    std::string text;
    for (uint64_t id = 1; id <= 3; ++id) {
        nextn_result result;
        if (nextn_session_result(session, id, &result)) return failure(session);
        for (size_t i = 0; i < result.num_tokens; ++i) text += std::to_string(result.tokens[i]) + " ";
        text += "|";
        for (size_t i = 0; i < result.num_rounds; ++i) text += " " + std::to_string(result.accept_lens[i]);
        text += "; ";
    }
    if (nextn_session_state(session, "tokens", nullptr) == nullptr) return failure(session);
    return text;
}

using Work = std::function<void()>;

void here(const Work &work) {
    work();
}

void elsewhere(const Work &work) {
    std::thread(work).join();
}

/** `on` is where the session runs and where it is closed; it is made on the calling thread. */
std::string run(const char *artifact, void (*on)(const Work &)) {
    char error[1024];
    nextn_model *model = nullptr;
    nextn_session *session = nullptr;
    if (nextn_model_open(artifact, nullptr, &model, error, sizeof error)) return error;
    std::string outcome;
    if (nextn_session_create(model, nullptr, &session, error, sizeof error)) {
        outcome = error;
    } else {
        on([&] { outcome = decode(session); });
    }
    on([&] {
        // In this order the session outlives the model's handle.
        nextn_model_close(model);
        nextn_session_destroy(session);
    });
    return outcome;
}

void report(const std::string &outcome) {
    const uint64_t kept = fake_cann_live_allocations() + fake_cann_live_streams() + fake_cann_live_models() +
                          fake_cann_live_model_objects() + fake_cann_live_contexts();
    std::printf("%llu %s\n", static_cast<unsigned long long>(kept), outcome.c_str());
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    // Handlers run in reverse: this one after those of the libraries.
    std::atexit([] { std::puts(fake_cann_is_initialized() ? "initialized" : "finalized"); });
    fake_cann_set_model_executor(play, nullptr);
    const bool with_threads = std::strcmp(argv[argc - 1], "threads") == 0;
    for (int i = 2; i < argc - with_threads; ++i) {
        const std::string fault = argv[i];
        const size_t colon = fault.find(':');
        fake_cann_fail(fault.substr(0, colon).c_str(),
                       static_cast<uint32_t>(std::atoi(fault.c_str() + colon + 1)));
        report(run(argv[1], here));
        fake_cann_fail(nullptr, 0);
    }
    report(run(argv[1], here));
    if (with_threads) report(run(argv[1], elsewhere));
    return 0;
}
