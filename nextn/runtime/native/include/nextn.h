/* NextN: replay ahead-of-time compiled DeepSeek-V4 speculative decoding.
 *
 *   char error[512];
 *   nextn_model *model;
 *   nextn_session *session;
 *   nextn_model_params mp = nextn_model_default_params();
 *   if (nextn_model_open("artifact", &mp, &model, error, sizeof error)) { puts(error); return 1; }
 *   nextn_session_params sp = nextn_session_default_params();
 *   nextn_session_create(model, &sp, &session, error, sizeof error);
 *
 *   int64_t prompt[] = {257, 100, 101, 102};
 *   nextn_request request = nextn_request_default();
 *   request.prompt = prompt;  request.prompt_length = 4;  request.max_new_tokens = 32;
 *   uint64_t id;
 *   nextn_session_submit(session, &request, &id);
 *   nextn_session_run(session, NULL, NULL);
 *
 *   nextn_result result;
 *   nextn_session_result(session, id, &result);      // result.tokens[0 .. result.num_tokens)
 *   nextn_session_destroy(session);  nextn_model_close(model);
 *
 * Ownership: every pointer handed out stays owned by the object it came from and is valid until that
 * object is destroyed (results: until nextn_session_release). The library keeps no pointer the caller
 * passed in after the call returns, but the functions and `user` of an executor.
 * Threads: a model may be shared by sessions on different threads; a session is used by one thread at a
 * time. nextn_session_interrupt alone may be called from any thread or signal handler.
 * Errors: a call returns NEXTN_OK or a status equal to the command line's exit code, and leaves one line of
 * text in the caller's buffer or in nextn_session_last_error. No C++ exception crosses this header. After
 * NEXTN_RUNTIME from run or turn the state is lost: unfinished requests are aborted, and only results remain.
 */
#ifndef NEXTN_H
#define NEXTN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NEXTN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nextn_model nextn_model;
typedef struct nextn_session nextn_session;

typedef enum nextn_status {
    NEXTN_OK = 0,
    NEXTN_USAGE = 2,        /* a parameter or a request with bad values */
    NEXTN_ARTIFACT = 4,     /* artifact damaged, incomplete, or not for this machine */
    NEXTN_RUNTIME = 5,      /* a graph, the loader, memory or the disk failed */
    NEXTN_INTERRUPTED = 130 /* nextn_session_interrupt was called; finished results stay readable */
} nextn_status;

typedef enum nextn_finish_reason {
    NEXTN_UNFINISHED = 0,
    NEXTN_STOP = 1,   /* an EOS token was emitted */
    NEXTN_LENGTH = 2, /* max_new_tokens or the artifact's max_seq_len was reached */
    NEXTN_ABORT = 3   /* cancelled, the token callback returned false, or the run was interrupted */
} nextn_finish_reason;

/* Every params struct starts with its own size, set by its default function, so that it can grow. */

typedef struct nextn_model_params {
    size_t struct_size;
    const char *torch_library; /* path of libtorch_cpu.so; NULL searches the default places */
    bool verify_weights;       /* also hash the weights body (reads the whole file) */
} nextn_model_params;

typedef enum nextn_tensor_kind { NEXTN_WEIGHT = 0, NEXTN_STATE = 1, NEXTN_INPUT = 2 } nextn_tensor_kind;

/* A tensor of the manifest and its contiguous host memory. */
typedef struct nextn_tensor {
    const char *name;
    const char *dtype; /* as the manifest spells it */
    void *data;        /* of a weight: read-only */
    size_t num_bytes;
    nextn_tensor_kind kind;
} nextn_tensor;

/* Runs an artifact's graphs in place of libnextn's own backends; one executor serves one session. The session
 * calls it on the thread that creates, runs or looks into the session. Each function returns whether it did
 * what it was asked for; if not, the session fails. Graphs are named "<name>.b<batch>": "round.b4". */
typedef struct nextn_executor {
    size_t struct_size;
    void *user; /* first argument of every call */
    /* First and once. The memory lasts as long as the session. State and inputs are zero; what the host then
     * writes into them comes through `write`. */
    bool (*attach)(void *user, const nextn_tensor *tensors, size_t count);
    /* The graph will be launched: compile, capture, warm up. State must be afterwards as it was before. */
    bool (*load)(void *user, const char *graph);
    /* The host changed these bytes of a state buffer or an input; later launches must see them. */
    bool (*write)(void *user, const char *name, size_t offset, size_t num_bytes);
    /* May return before the graph has run. */
    bool (*launch)(void *user, const char *graph);
    /* Waits for every launched graph. */
    bool (*wait)(void *user);
    /* Waits, then makes the memory of this state buffer current. */
    bool (*read)(void *user, const char *name);
} nextn_executor;

typedef struct nextn_session_params {
    size_t struct_size;
    int32_t slots;                  /* requests decoded together; 0 = the artifact's largest batch size */
    int32_t round_samples;          /* rounds whose timings are kept for round_times; default 16384 */
    bool speculation;               /* default true; false, or k = 0, replays the plain `decode` graph */
    bool phases;                    /* true replays verify, accept, draft_extend, draft_step for `round` */
    const nextn_executor *executor; /* copied; NULL if libnextn runs the graphs itself (emit aoti, om) */
} nextn_session_params;

typedef struct nextn_request {
    size_t struct_size;
    const int64_t *prompt;  /* token ids, each in [0, vocab_size) */
    size_t prompt_length;   /* 1 .. max_seq_len - 1 */
    int64_t max_new_tokens; /* >= 1; clipped to max_seq_len - prompt_length */
    int64_t seed;           /* >= 0; equal seeds draw equal tokens, whatever runs beside them */
    double temperature;     /* 0 = greedy */
    double top_p;           /* reserved: must be 1 */
    double min_p;           /* reserved: must be 0 */
    int32_t top_k;          /* reserved: must be 0 */
    bool ignore_eos;        /* true: EOS ids are ordinary tokens */
} nextn_request;

typedef struct nextn_result {
    const int64_t *tokens; /* generated tokens, EOS included */
    size_t num_tokens;
    const uint8_t *accept_lens; /* per round: accepted drafts + 1, before trimming by EOS or length */
    size_t num_rounds;
    nextn_finish_reason finish_reason;
    size_t prompt_tokens;
    double ttft_ms; /* submit to first token */
    double e2e_ms;  /* submit to last token */
} nextn_result;

typedef struct nextn_metrics {
    uint64_t num_rounds;           /* round launches, whatever the batch */
    uint64_t num_row_rounds;       /* sum over rounds of live rows */
    uint64_t num_accepted;         /* matched drafts over all row-rounds */
    uint64_t accepted_at_least[8]; /* row-rounds in which drafts 1..i+1 were all accepted */
    uint64_t num_graph_launches;
    uint64_t num_prefill_launches;
    uint64_t num_draft_forwards_prefill; /* NextN forwards run by `seed` launches */
    uint64_t num_draft_forwards_extend;
    uint64_t num_draft_forwards_step;
    double prefill_ms; /* in prefill and seed graphs */
    double decode_ms;  /* in round (or decode, or phase) graphs */
} nextn_metrics;

/* Microseconds of one round. Without `phases` the four phase fields are 0. */
typedef struct nextn_round_times {
    float graph_us;
    float host_us; /* wall time of the round outside the graphs, token callbacks included */
    float verify_us, accept_us, extend_us, step_us;
} nextn_round_times;

typedef struct nextn_model_info {
    int32_t num_steps; /* k */
    int32_t slots;     /* largest batch size */
    int32_t num_graphs;
    int64_t vocab_size, max_seq_len, prefill_chunk;
    uint64_t weight_bytes, state_bytes; /* state for `slots` slots plus the scratch slot */
} nextn_model_info;

/* Tokens one request produced in one round (or its first token, from prefill). Returning false aborts that
 * request; the others go on. Runs on the caller's thread, inside nextn_session_run. */
typedef bool (*nextn_token_callback)(void *user, uint64_t request, const int64_t *tokens, size_t count);

NEXTN_API const char *nextn_version(void);
NEXTN_API nextn_model_params nextn_model_default_params(void);
NEXTN_API nextn_session_params nextn_session_default_params(void);
NEXTN_API nextn_request nextn_request_default(void);

/* Checks manifest, graph files, weights header, torch version and ISA before anything is loaded. */
NEXTN_API nextn_status nextn_model_open(const char *directory, const nextn_model_params *params,
                                        nextn_model **model, char *error, size_t error_size);
/* Sessions may outlive the model's handle; files and weights stay until the last of them is destroyed. */
NEXTN_API void nextn_model_close(nextn_model *model);
NEXTN_API nextn_model_info nextn_model_get_info(const nextn_model *model);
NEXTN_API const char *nextn_model_manifest(const nextn_model *model); /* JSON text */

NEXTN_API nextn_status nextn_session_create(nextn_model *model, const nextn_session_params *params,
                                            nextn_session **session, char *error, size_t error_size);
/* Ignored while the session runs: end the run first. */
NEXTN_API void nextn_session_destroy(nextn_session *session);
NEXTN_API const char *nextn_session_last_error(const nextn_session *session);

/* Copies the request and queues it; NEXTN_USAGE for bad values, and the session stays usable.
 * A token callback must not call this, run, turn, release or destroy on its own session. */
NEXTN_API nextn_status nextn_session_submit(nextn_session *session, const nextn_request *request,
                                            uint64_t *id);
/* Runs until every queued request is finished. Outside the graphs a round allocates nothing; a request gets
 * room for its tokens with its slot, and gives back what it did not need when it ends. */
NEXTN_API nextn_status nextn_session_run(nextn_session *session, nextn_token_callback callback, void *user);
/* Runs at least one turn, until a finished request waits in nextn_session_next_finished or all are finished;
 * for hosts that report or add requests as others finish. `*busy` says whether work is left. */
NEXTN_API nextn_status nextn_session_run_until_finished(nextn_session *session, nextn_token_callback callback,
                                                        void *user, bool *busy);
/* As run_until_finished, and returns also after the turn in which `milliseconds` (0 .. a day) pass, so that a
 * host can look after signals, arrivals and cancellations: at least one turn, at most one more than asked. */
NEXTN_API nextn_status nextn_session_run_for(nextn_session *session, double milliseconds,
                                             nextn_token_callback callback, void *user, bool *busy);
/* One scheduling turn: at most one prefill chunk, then one round. `*busy` says whether work is left. */
NEXTN_API nextn_status nextn_session_turn(nextn_session *session, nextn_token_callback callback, void *user,
                                          bool *busy);
/* Ends a request between runs, whether it is queued, in prefill or decoding: it is finished with NEXTN_ABORT
 * and the tokens it has, and its slot is free for the next turn. NEXTN_OK, and no change, if it is finished
 * already; NEXTN_USAGE for an unknown id. */
NEXTN_API nextn_status nextn_session_cancel(nextn_session *session, uint64_t id);
/* Makes the run in progress return NEXTN_INTERRUPTED after its current turn. Async-signal-safe. */
NEXTN_API void nextn_session_interrupt(nextn_session *session);

/* Of an unfinished request: what there is so far, with finish_reason NEXTN_UNFINISHED. */
NEXTN_API nextn_status nextn_session_result(nextn_session *session, uint64_t id, nextn_result *result);
/* Ids of finished requests in the order in which they finished, each once; false if there is no new one. */
NEXTN_API bool nextn_session_next_finished(nextn_session *session, uint64_t *id);
/* Forgets a finished request. */
NEXTN_API void nextn_session_release(nextn_session *session, uint64_t id);
NEXTN_API nextn_metrics nextn_session_get_metrics(const nextn_session *session);
/* Copies up to `capacity` of the kept round timings, oldest first; returns how many. */
NEXTN_API size_t nextn_session_round_times(const nextn_session *session, nextn_round_times *times,
                                           size_t capacity);

/* A state buffer by manifest name as the last graph left it, for self-tests and debuggers: the buffer itself
 * where graphs run in host memory, else a copy, current when asked for. Rows are [(slots + 1) *
 * rows_per_slot, row_width]. NULL if there is none, with *num_bytes = 0, or if it cannot be read, with a text
 * in nextn_session_last_error. */
NEXTN_API void *nextn_session_state(nextn_session *session, const char *name, size_t *num_bytes);

#ifdef __cplusplus
}
#endif
#endif
