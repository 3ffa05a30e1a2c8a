/* A stand-in for libnextn: same header, no graphs.
 *
 * The "model" repeats the prompt: generated token i is prompt[i mod P], shifted by the seed when
 * temperature > 0. In round r it accepts r mod (k + 1) drafts. So a test scripts an output by writing it
 * as the prompt. Knobs are strings in the manifest's `ops`: fake_round_us (sleep per round), fake_fail
 * ("graph": the first round fails), fake_weights ("damaged": verification fails).
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nextn.h"

enum { RESULT_WIDTH = 16, CONTROL_WIDTH = 32, RING_ROWS = 4, RING_WIDTH = 8, MAX_EOS = 8, OUT_COUNT = 9 };

struct nextn_model {
    char *manifest;
    nextn_model_info info;
    int64_t eos[MAX_EOS];
    int num_eos, round_us, fail;
};

typedef struct request {
    int64_t *prompt, *tokens;
    uint8_t *accept_lens;
    size_t prompt_length, prefilled, num_tokens, num_rounds;
    int64_t max_new_tokens, seed;
    double temperature, submitted, first, last;
    bool ignore_eos;
    int slot;
    nextn_finish_reason finish;
} request;

struct nextn_session {
    nextn_model *model;
    nextn_session_params params;
    request *requests;
    size_t num_requests, num_finished, next_announced;
    uint64_t finished[4096];
    nextn_metrics metrics;
    nextn_round_times *times;
    size_t num_times;
    atomic_bool interrupted;
    int64_t *control, *result;
    float *ring;
    char error[256];
};

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static const char *after_key(const char *json, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *found = strstr(json, quoted);
    return found ? found + strlen(quoted) : NULL;
}

static int64_t number(const char *json, const char *key, int64_t absent) {
    const char *value = after_key(json, key);
    if (!value) return absent;
    while (*value == ' ' || *value == '"') value++;
    return strtoll(value, NULL, 10);
}

static bool contains(const char *json, const char *key, const char *word) {
    const char *value = after_key(json, key);
    return value && !strncmp(value + 2, word, strlen(word));
}

const char *nextn_version(void) { return FAKE_VERSION; }

nextn_model_params nextn_model_default_params(void) {
    return (nextn_model_params){.struct_size = sizeof(nextn_model_params)};
}

nextn_session_params nextn_session_default_params(void) {
    return (nextn_session_params){
        .struct_size = sizeof(nextn_session_params), .round_samples = 64, .speculation = true};
}

nextn_request nextn_request_default(void) {
    return (nextn_request){.struct_size = sizeof(nextn_request), .max_new_tokens = 16, .top_p = 1};
}

nextn_status nextn_model_open(const char *directory, const nextn_model_params *params, nextn_model **model,
                              char *error, size_t error_size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/manifest.json", directory);
    FILE *file = fopen(path, "rb");
    if (!file) {
        snprintf(error, error_size, "artifact has no manifest (file %s)", path);
        return NEXTN_ARTIFACT;
    }
    char *text = calloc(1, 1 << 20);
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    if (size == 0 || (params->verify_weights && contains(text, "fake_weights", "damaged"))) {
        snprintf(error, error_size, "weights body is damaged (file weights.safetensors)");
        free(text);
        return NEXTN_ARTIFACT;
    }
    nextn_model *m = calloc(1, sizeof *m);
    m->manifest = text;
    m->info = (nextn_model_info){
        .num_steps = (int32_t)number(text, "num_steps", 0),
        .slots = (int32_t)number(text, "slots", 1),
        .num_graphs = 3,
        .vocab_size = number(text, "vocab_size", 1),
        .max_seq_len = number(text, "max_seq_len", 2),
        .prefill_chunk = number(text, "prefill_chunk", 1),
        .weight_bytes = 1000,
        .state_bytes = 2000,
    };
    const char *eos = strchr(after_key(text, "eos_token_ids"), '[');
    for (char *end = NULL; *eos != ']' && m->num_eos < MAX_EOS; eos = end) {
        m->eos[m->num_eos++] = strtoll(eos + 1, &end, 10);
        end += strspn(end, " \n");
    }
    m->round_us = (int)number(text, "fake_round_us", 0);
    m->fail = contains(text, "fake_fail", "graph");
    *model = m;
    return NEXTN_OK;
}

void nextn_model_close(nextn_model *model) {
    free(model->manifest);
    free(model);
}

nextn_model_info nextn_model_get_info(const nextn_model *model) { return model->info; }
const char *nextn_model_manifest(const nextn_model *model) { return model->manifest; }

nextn_status nextn_session_create(nextn_model *model, const nextn_session_params *params,
                                  nextn_session **session, char *error, size_t error_size) {
    if (params->slots < 0 || params->slots > model->info.slots) {
        snprintf(error, error_size, "slots: expected 0..%d, found %d", model->info.slots, params->slots);
        return NEXTN_USAGE;
    }
    nextn_session *s = calloc(1, sizeof *s);
    size_t rows = (size_t)model->info.slots + 1;
    s->model = model;
    s->params = *params;
    if (!s->params.slots) s->params.slots = model->info.slots;
    if (!model->info.num_steps) s->params.speculation = false;
    s->control = calloc(rows * CONTROL_WIDTH, sizeof *s->control);
    s->result = calloc(rows * RESULT_WIDTH, sizeof *s->result);
    s->ring = calloc(rows * RING_ROWS * RING_WIDTH, sizeof *s->ring);
    s->times = calloc((size_t)s->params.round_samples, sizeof *s->times);
    *session = s;
    return NEXTN_OK;
}

static void free_request(request *r) {
    free(r->prompt);
    free(r->tokens);
    free(r->accept_lens);
    *r = (request){0};
}

void nextn_session_destroy(nextn_session *s) {
    for (size_t i = 0; i < s->num_requests; i++) free_request(&s->requests[i]);
    free(s->requests);
    free(s->control);
    free(s->result);
    free(s->ring);
    free(s->times);
    free(s);
}

const char *nextn_session_last_error(const nextn_session *s) { return s->error; }

nextn_status nextn_session_submit(nextn_session *s, const nextn_request *given, uint64_t *id) {
    int64_t room = s->model->info.max_seq_len - (int64_t)given->prompt_length;
    if (given->prompt_length < 1 || room < 1 || given->max_new_tokens < 1) {
        snprintf(s->error, sizeof s->error, "request: bad length");
        return NEXTN_USAGE;
    }
    for (size_t i = 0; i < given->prompt_length; i++)
        if (given->prompt[i] < 0 || given->prompt[i] >= s->model->info.vocab_size) {
            snprintf(s->error, sizeof s->error, "prompt[%zu]: not a token", i);
            return NEXTN_USAGE;
        }
    s->requests = realloc(s->requests, (s->num_requests + 1) * sizeof *s->requests);
    request *r = &s->requests[s->num_requests];
    *r = (request){
        .prompt_length = given->prompt_length,
        .max_new_tokens = given->max_new_tokens < room ? given->max_new_tokens : room,
        .seed = given->seed,
        .temperature = given->temperature,
        .ignore_eos = given->ignore_eos,
        .submitted = now_ms(),
        .slot = -1,
    };
    r->prompt = malloc(given->prompt_length * sizeof *r->prompt);
    memcpy(r->prompt, given->prompt, given->prompt_length * sizeof *r->prompt);
    r->tokens = calloc((size_t)r->max_new_tokens + 16, sizeof *r->tokens);
    r->accept_lens = calloc((size_t)r->max_new_tokens + 16, 1);
    *id = ++s->num_requests;
    return NEXTN_OK;
}

static void finish(nextn_session *s, uint64_t id, nextn_finish_reason reason) {
    s->requests[id - 1].finish = reason;
    s->finished[s->num_finished++] = id;
}

static bool is_eos(const nextn_session *s, const request *r, int64_t token) {
    for (int i = 0; i < s->model->num_eos && !r->ignore_eos; i++)
        if (s->model->eos[i] == token) return true;
    return false;
}

/* Emits up to `count` tokens and fills the result row the way the graphs do. */
static void emit(nextn_session *s, uint64_t id, int count, int accepted, nextn_token_callback callback,
                 void *user) {
    request *r = &s->requests[id - 1];
    int64_t *row = s->result + r->slot * RESULT_WIDTH;
    size_t before = r->num_tokens;
    nextn_finish_reason reason = NEXTN_UNFINISHED;
    while (count-- > 0 && !reason) {
        int64_t token = r->prompt[r->num_tokens % r->prompt_length];
        if (r->temperature > 0) token = (token + r->seed) % s->model->info.vocab_size;
        row[r->num_tokens - before] = token;
        r->tokens[r->num_tokens++] = token;
        float *ring = s->ring + (r->slot * RING_ROWS + r->num_tokens % RING_ROWS) * RING_WIDTH;
        for (int i = 0; i < RING_WIDTH; i++) ring[i] = (float)token * (i % 2 ? -0.5f : 1.0f);
        if ((int64_t)r->num_tokens == r->max_new_tokens) reason = NEXTN_LENGTH;
        if (is_eos(s, r, token)) reason = NEXTN_STOP;
    }
    r->last = now_ms();
    if (before == 0) r->first = r->last;
    row[OUT_COUNT] = (int64_t)(r->num_tokens - before);
    row[OUT_COUNT + 1] = accepted;
    row[OUT_COUNT + 2] = reason != NEXTN_UNFINISHED;
    row[OUT_COUNT + 3] = (int64_t)(r->prompt_length + r->num_tokens) - 1;
    if (callback && !callback(user, id, r->tokens + before, r->num_tokens - before) && !reason)
        reason = NEXTN_ABORT;
    if (reason) finish(s, id, reason);
}

static bool slot_taken(const nextn_session *s, int slot) {
    for (size_t i = 0; i < s->num_requests; i++)
        if (s->requests[i].slot == slot && s->requests[i].tokens && !s->requests[i].finish) return true;
    return false;
}

static void prefill(nextn_session *s, nextn_token_callback callback, void *user) {
    for (size_t i = 0; i < s->num_requests; i++) {
        request *r = &s->requests[i];
        if (!r->tokens || r->finish || r->num_tokens) continue;
        for (int slot = 0; slot < s->params.slots && r->slot < 0; slot++)
            if (!slot_taken(s, slot)) r->slot = slot;
        if (r->slot < 0) return;
        r->prefilled += (size_t)s->model->info.prefill_chunk;
        s->metrics.num_prefill_launches++;
        s->metrics.num_graph_launches++;
        if (r->prefilled >= r->prompt_length) emit(s, i + 1, 1, -1, callback, user);
        return;
    }
}

static void round_of(nextn_session *s, nextn_token_callback callback, void *user) {
    int k = s->params.speculation ? s->model->info.num_steps : 0, live = 0;
    for (size_t i = 0; i < s->num_requests; i++) {
        request *r = &s->requests[i];
        if (!r->num_tokens || r->finish) continue;
        int accepted = (int)(r->num_rounds % (size_t)(k + 1));
        r->accept_lens[r->num_rounds++] = (uint8_t)(accepted + 1);
        s->metrics.num_row_rounds++;
        s->metrics.num_accepted += (uint64_t)accepted;
        for (int step = 0; step < accepted; step++) s->metrics.accepted_at_least[step]++;
        live++;
        emit(s, i + 1, accepted + 1, accepted, callback, user);
    }
    if (!live) return;
    struct timespec pause = {s->model->round_us / 1000000, (s->model->round_us % 1000000) * 1000L};
    nanosleep(&pause, NULL);
    s->metrics.num_rounds++;
    s->metrics.num_graph_launches += s->params.phases ? (uint64_t)k + 2 : 1;
    s->metrics.num_draft_forwards_extend += k > 0;
    s->metrics.num_draft_forwards_step += k > 0 ? (uint64_t)k - 1 : 0;
    if (s->num_times < (size_t)s->params.round_samples)
        s->times[s->num_times++] = (nextn_round_times){.graph_us = 100, .host_us = 2};
}

nextn_status nextn_session_turn(nextn_session *s, nextn_token_callback callback, void *user, bool *busy) {
    if (s->model->fail) {
        snprintf(s->error, sizeof s->error, "graph round.b1 failed");
        return NEXTN_RUNTIME;
    }
    prefill(s, callback, user);
    round_of(s, callback, user);
    *busy = false;
    for (size_t i = 0; i < s->num_requests; i++)
        *busy = *busy || (s->requests[i].tokens && !s->requests[i].finish);
    return NEXTN_OK;
}

/* Turns until `one` request has finished, or all have. */
static nextn_status run(nextn_session *s, nextn_token_callback callback, void *user, bool one, bool *busy) {
    do {
        nextn_status status = nextn_session_turn(s, callback, user, busy);
        if (status) return status;
        if (*busy && atomic_load(&s->interrupted)) {
            for (size_t i = 0; i < s->num_requests; i++)
                if (s->requests[i].tokens && !s->requests[i].finish) finish(s, i + 1, NEXTN_ABORT);
            *busy = false;
            return NEXTN_INTERRUPTED;
        }
    } while (*busy && !(one && s->next_announced < s->num_finished));
    return NEXTN_OK;
}

nextn_status nextn_session_run(nextn_session *s, nextn_token_callback callback, void *user) {
    bool busy = true;
    atomic_store(&s->interrupted, false);
    return run(s, callback, user, false, &busy);
}

nextn_status nextn_session_run_until_finished(nextn_session *s, nextn_token_callback callback, void *user,
                                              bool *busy) {
    return run(s, callback, user, true, busy);
}

void nextn_session_interrupt(nextn_session *s) { atomic_store(&s->interrupted, true); }

nextn_status nextn_session_result(nextn_session *s, uint64_t id, nextn_result *result) {
    if (id < 1 || id > s->num_requests || !s->requests[id - 1].tokens) {
        snprintf(s->error, sizeof s->error, "no such request");
        return NEXTN_USAGE;
    }
    const request *r = &s->requests[id - 1];
    *result = (nextn_result){
        .tokens = r->tokens,
        .num_tokens = r->num_tokens,
        .accept_lens = r->accept_lens,
        .num_rounds = r->num_rounds,
        .finish_reason = r->finish,
        .prompt_tokens = r->prompt_length,
        .ttft_ms = r->first - r->submitted,
        .e2e_ms = r->last - r->submitted,
    };
    return NEXTN_OK;
}

bool nextn_session_next_finished(nextn_session *s, uint64_t *id) {
    if (s->next_announced == s->num_finished) return false;
    *id = s->finished[s->next_announced++];
    return true;
}

void nextn_session_release(nextn_session *s, uint64_t id) { free_request(&s->requests[id - 1]); }
nextn_metrics nextn_session_get_metrics(const nextn_session *s) { return s->metrics; }

size_t nextn_session_round_times(const nextn_session *s, nextn_round_times *times, size_t capacity) {
    size_t count = s->num_times < capacity ? s->num_times : capacity;
    memcpy(times, s->times, count * sizeof *times);
    return count;
}

void *nextn_session_state(nextn_session *s, const char *name, size_t *num_bytes) {
    size_t rows = (size_t)s->model->info.slots + 1;
    if (!strcmp(name, "result")) return *num_bytes = rows * RESULT_WIDTH * sizeof *s->result, s->result;
    if (!strcmp(name, "control")) return *num_bytes = rows * CONTROL_WIDTH * sizeof *s->control, s->control;
    if (!strcmp(name, "ring")) return *num_bytes = rows * RING_ROWS * RING_WIDTH * sizeof *s->ring, s->ring;
    *num_bytes = 0;
    return NULL;
}
