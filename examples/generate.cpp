// Decodes one prompt of token ids with a compiled artifact, without Python.
//
//   g++ -std=c++17 -I INCLUDE generate.cpp -o generate -L LIB -lnextn -Wl,-rpath,LIB
//   ./generate ARTIFACT 257,100,101,102 [MAX_NEW_TOKENS [TEMPERATURE [SEED]]]
//
// Prints the generated ids on one line. INCLUDE and LIB are the folders runtime/include and runtime/lib of
// the installed package; libtorch_cpu.so is found beside the package or through LD_LIBRARY_PATH.

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "nextn.hpp"

namespace {

// Whole numbers separated by commas; empty if the text is anything else.
std::vector<int64_t> parse_ids(const char *text) {
    std::vector<int64_t> ids;
    for (const char *place = text;; ++place) {
        char *end = nullptr;
        errno = 0;
        ids.push_back(std::strtoll(place, &end, 10));
        if (end == place || errno != 0) return {};
        if (*end == '\0') return ids;
        if (*end != ',') return {};
        place = end;
    }
}

int fail(const nextn::Error &error) {
    std::fprintf(stderr, "generate: %s\n", error.text.c_str());
    return error.code;
}

int generate(const char *artifact, const nextn_request &request) {
    auto model = nextn::Model::open(artifact);
    if (!model) return fail(model.error());
    auto session = model->create_session();
    if (!session) return fail(session.error());
    auto id = session->submit(request);
    if (!id) return fail(id.error());
    if (auto done = session->run(); !done) return fail(done.error());
    auto result = session->result(*id);
    if (!result) return fail(result.error());

    for (size_t i = 0; i < result->num_tokens; ++i) {
        std::printf("%s%lld", i == 0 ? "" : ",", static_cast<long long>(result->tokens[i]));
    }
    std::printf("\n");
    std::fprintf(stderr, "%zu tokens in %zu rounds, %.1f ms\n", result->num_tokens, result->num_rounds,
                 result->e2e_ms);
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3 || argc > 6) {
        std::fprintf(stderr, "usage: generate ARTIFACT ID,ID,... [MAX_NEW_TOKENS [TEMPERATURE [SEED]]]\n");
        return NEXTN_USAGE;
    }
    const std::vector<int64_t> prompt = parse_ids(argv[2]);
    nextn_request request = nextn_request_default();
    request.prompt = prompt.data();
    request.prompt_length = prompt.size();
    if (argc > 3) request.max_new_tokens = std::strtoll(argv[3], nullptr, 10);
    if (argc > 4) request.temperature = std::strtod(argv[4], nullptr);
    if (argc > 5) request.seed = std::strtoll(argv[5], nullptr, 10);
    return generate(argv[1], request);
}
