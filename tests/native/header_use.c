/* The first comment of nextn.h as a program, in C99. */
#include "nextn.h"

#include <stdio.h>

static bool show(void *user, uint64_t request, const int64_t *tokens, size_t count) {
    size_t i;
    (void)user;
    for (i = 0; i < count; ++i) printf("%llu:%lld\n", (unsigned long long)request, (long long)tokens[i]);
    return true;
}

int main(int argc, char **argv) {
    char error[512];
    nextn_model *model;
    nextn_session *session;
    nextn_model_params mp = nextn_model_default_params();
    nextn_session_params sp = nextn_session_default_params();
    nextn_request request = nextn_request_default();
    int64_t prompt[] = {25, 10, 11, 12};
    nextn_result result;
    uint64_t id;

    if (argc != 3) return NEXTN_USAGE;
    mp.torch_library = argv[2];
    if (nextn_model_open(argv[1], &mp, &model, error, sizeof error)) {
        puts(error);
        return 1;
    }
    if (nextn_session_create(model, &sp, &session, error, sizeof error)) return 1;
    request.prompt = prompt;
    request.prompt_length = 4;
    request.max_new_tokens = 32;
    if (nextn_session_submit(session, &request, &id)) return 1;
    if (nextn_session_run(session, show, NULL)) return 1;
    if (nextn_session_result(session, id, &result)) return 1;
    printf("%zu tokens, reason %d\n", result.num_tokens, (int)result.finish_reason);
    nextn_session_destroy(session);
    nextn_model_close(model);
    return 0;
}
