/* A host in C99 whose executor plays a script: `executor_use ARTIFACT [CALL]` prints every call, and the tokens.
 *
 * The graphs of its artifact have no code: "prefill" answers with the number of prompt tokens, each "decode"
 * with one more than before, and the third token is the last. CALL is the first word of a call that fails.
 */
#include "nextn.h"

#include <stdio.h>
#include <string.h>

enum { RESULT_WIDTH = 16, CONTROL_WIDTH = 32, OUT_COUNT = 9, ACCEPTED = 10, FINISHED = 11, PROMPT_LENGTH = 10 };

typedef struct script {
    const char *fault;
    int64_t *control, *result;
    int64_t last;
    int num_tokens;
} script;

static bool say(const script *played, const char *call, const char *name) {
    printf("%s %s\n", call, name);
    return strcmp(call, played->fault) != 0;
}

static bool attach(void *user, const nextn_tensor *tensors, size_t count) {
    script *played = user;
    size_t i, bytes[3] = {0, 0, 0};
    for (i = 0; i < count; ++i) {
        bytes[tensors[i].kind] += tensors[i].num_bytes;
        if (!strcmp(tensors[i].name, "control")) played->control = tensors[i].data;
        if (!strcmp(tensors[i].name, "result")) played->result = tensors[i].data;
        if (!strcmp(tensors[i].name, "embed") && strcmp(tensors[i].dtype, "float32")) return false;
    }
    printf("%zu weight bytes, %zu state bytes, %zu input bytes\n", bytes[NEXTN_WEIGHT], bytes[NEXTN_STATE],
           bytes[NEXTN_INPUT]);
    return say(played, "attach", "");
}

static bool load(void *user, const char *graph) { return say(user, "load", graph); }

static bool write_bytes(void *user, const char *name, size_t offset, size_t num_bytes) {
    printf("%zu+%zu ", offset, num_bytes);
    return say(user, "write", name);
}

static bool launch(void *user, const char *graph) {
    script *played = user;
    int64_t *row = played->result;
    played->last = strcmp(graph, "prefill.b1") ? played->last + 1 : played->control[PROMPT_LENGTH];
    ++played->num_tokens;
    memset(row, 0, RESULT_WIDTH * sizeof *row);
    row[0] = played->last;
    row[OUT_COUNT] = 1;
    row[ACCEPTED] = strcmp(graph, "prefill.b1") ? 0 : -1;
    row[FINISHED] = played->num_tokens == 3;
    return say(played, "launch", graph);
}

static bool wait_all(void *user) { return say(user, "wait", ""); }

static bool read_state(void *user, const char *name) { return say(user, "read", name); }

int main(int argc, char **argv) {
    char error[512];
    nextn_model *model;
    nextn_session *session;
    nextn_session_params params = nextn_session_default_params();
    nextn_executor executor = {0};
    nextn_request request = nextn_request_default();
    int64_t prompt[] = {25, 10, 11, 12};
    script played = {"", NULL, NULL, 0, 0};
    nextn_result result;
    nextn_status status;
    uint64_t id;
    size_t i, bytes;

    if (argc < 2) return NEXTN_USAGE;
    if (argc > 2) played.fault = argv[2];
    status = nextn_model_open(argv[1], NULL, &model, error, sizeof error);
    if (status) {
        puts(error);
        return (int)status;
    }
    executor.struct_size = sizeof executor;
    executor.user = &played;
    executor.attach = attach;
    executor.load = load;
    executor.write = write_bytes;
    executor.launch = launch;
    executor.wait = wait_all;
    params.executor = &executor;
    status = nextn_session_create(model, &params, &session, error, sizeof error);
    printf("%d %s\n", (int)status, error);
    executor.read = read_state;
    status = nextn_session_create(model, &params, &session, error, sizeof error);
    memset(&executor, 0, sizeof executor);
    nextn_model_close(model);
    if (status) {
        puts(error);
        return (int)status;
    }
    request.prompt = prompt;
    request.prompt_length = 4;
    if (nextn_session_submit(session, &request, &id)) return 1;
    status = nextn_session_run(session, NULL, NULL);
    if (status) puts(nextn_session_last_error(session));
    if (nextn_session_result(session, id, &result)) return 1;
    for (i = 0; i < result.num_tokens; ++i) printf("token %lld\n", (long long)result.tokens[i]);
    if (nextn_session_state(session, "nothing", &bytes) || bytes != 0) return 1;
    if (!nextn_session_state(session, "control", &bytes)) puts(nextn_session_last_error(session));
    printf("%zu control bytes\n", bytes);
    nextn_session_destroy(session);
    return (int)status;
}
