// Decodes one prompt of token ids with a compiled artifact, without Python.
//
//   g++ -std=c++17 -I INCLUDE generate.cpp -o generate -L LIB -lnextn -Wl,-rpath,LIB
//   ./generate ARTIFACT 257,100,101,102 [MAX_NEW_TOKENS [TEMPERATURE [SEED]]]
//
// Prints the generated ids on one line. INCLUDE and LIB are the folders runtime/include and runtime/lib of
// the installed package; libtorch_cpu.so is found beside the package or through LD_LIBRARY_PATH.

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "nextn.hpp"

namespace {

// The number that is the whole of [begin, end); false for anything else and for one that does not fit.
bool parse(const char *begin, const char *end, int64_t *value) {
    const auto [stop, error] = std::from_chars(begin, end, *value);
    return error == std::errc() && stop == end;
}

bool parse(const std::string &text, int64_t *value) {
    return parse(text.data(), text.data() + text.size(), value);
}

bool parse(const std::string &text, double *value) {
    char *stop = nullptr;
    errno = 0;
    *value = std::strtod(text.c_str(), &stop);
    return !text.empty() && *stop == '\0' && errno == 0;
}

// Whole numbers separated by commas.
bool parse(const std::string &text, std::vector<int64_t> *ids) {
    const char *const end = text.data() + text.size();
    for (const char *place = text.data();; ++place) {
        const char *const comma = std::find(place, end, ',');
        if (!parse(place, comma, &ids->emplace_back())) return false;
        if (comma == end) return true;
        place = comma;
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
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
        return fail({NEXTN_RUNTIME, std::string("cannot write to stdout: ") + std::strerror(errno)});
    }
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
    std::vector<int64_t> prompt;
    nextn_request request = nextn_request_default();
    const char *bad = parse(argv[2], &prompt) ? nullptr : argv[2];
    if (argc > 3 && !parse(argv[3], &request.max_new_tokens)) bad = argv[3];
    if (argc > 4 && !parse(argv[4], &request.temperature)) bad = argv[4];
    if (argc > 5 && !parse(argv[5], &request.seed)) bad = argv[5];
    if (bad != nullptr) return fail({NEXTN_USAGE, std::string("not a number in range: ") + bad});
    request.prompt = prompt.data();
    request.prompt_length = prompt.size();
    return generate(argv[1], request);
}
