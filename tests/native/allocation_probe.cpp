// Counts the heap allocations of one nextn_session_run, apart for those made inside graphs and outside them.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "nextn.hpp"

extern "C" void *__libc_malloc(size_t size);
extern "C" void *__libc_calloc(size_t count, size_t size);
extern "C" void *__libc_realloc(void *place, size_t size);
extern "C" void *__libc_memalign(size_t alignment, size_t size);

namespace {

using RunGraph = int32_t (*)(void *, void **, size_t, void **, size_t, void *, void *);

constexpr char run_symbol[] = "AOTInductorModelContainerRunSingleThreaded";
constexpr size_t max_graphs = 32;

std::array<RunGraph, max_graphs> real_runs{};
size_t num_graphs = 0;

bool counting = false;
bool in_graph = false;
long inside = 0;
long outside = 0;

void count() {
    if (counting) ++(in_graph ? inside : outside);
}

void allocate_once() {
    // Volatile, or the compiler may drop an allocation that nothing uses.
    static void *volatile place;
    place = std::malloc(8);
    std::free(place);
}

/** What the library gets instead of the run function of the graph it looked up as number `index`. */
template <size_t index>
int32_t run_graph(void *container, void **inputs, size_t num_inputs, void **outputs, size_t num_outputs,
                  void *stream, void *proxy) {
    in_graph = true;
    const int32_t failed =
        real_runs[index](container, inputs, num_inputs, outputs, num_outputs, stream, proxy);
    in_graph = false;
    return failed;
}

template <size_t... index>
constexpr std::array<RunGraph, sizeof...(index)> all_wrappers(std::index_sequence<index...>) {
    return {run_graph<index>...};
}

constexpr auto wrappers = all_wrappers(std::make_index_sequence<max_graphs>());

bool see_tokens(uint64_t, const int64_t *, size_t) {
    return true;
}

bool see_tokens_and_allocate(uint64_t, const int64_t *, size_t) {
    allocate_once();
    return true;
}

bool submit(nextn::Session &session, int64_t length) {
    const std::vector<int64_t> prompt(static_cast<size_t>(length), length / 3);
    nextn_request request = nextn_request_default();
    request.prompt = prompt.data();
    request.prompt_length = prompt.size();
    request.max_new_tokens = 20;
    return static_cast<bool>(session.submit(request));
}

}  // namespace

// The program's own definitions take precedence over libc's for every library in the process.
extern "C" void *malloc(size_t size) {
    count();
    return __libc_malloc(size);
}

extern "C" void *calloc(size_t number, size_t size) {
    count();
    return __libc_calloc(number, size);
}

extern "C" void *realloc(void *place, size_t size) {
    count();
    return __libc_realloc(place, size);
}

extern "C" void *memalign(size_t alignment, size_t size) {
    count();
    return __libc_memalign(alignment, size);
}

extern "C" void *aligned_alloc(size_t alignment, size_t size) {
    count();
    return __libc_memalign(alignment, size);
}

extern "C" int posix_memalign(void **place, size_t alignment, size_t size) {
    count();
    *place = __libc_memalign(alignment, size);
    return 0;
}

extern "C" void *dlsym(void *library, const char *name) {
    using Lookup = void *(*)(void *, const char *);
    static const auto real = reinterpret_cast<Lookup>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
    // That one depends on who calls, which from here would always be this program.
    if (real == nullptr || library == RTLD_NEXT) std::abort();
    void *found = real(library, name);
    if (found == nullptr || std::strcmp(name, run_symbol) != 0) return found;
    const auto run = reinterpret_cast<RunGraph>(found);
    const size_t index =
        static_cast<size_t>(std::find(real_runs.begin(), real_runs.end(), run) - real_runs.begin());
    if (index < max_graphs) return reinterpret_cast<void *>(wrappers[index]);
    if (num_graphs == max_graphs) std::abort();
    real_runs[num_graphs] = run;
    return reinterpret_cast<void *>(wrappers[num_graphs++]);
}

int main(int argc, char **argv) {
    if (argc != 5) return NEXTN_USAGE;
    nextn_model_params model_params = nextn_model_default_params();
    model_params.torch_library = argv[2];
    auto model = nextn::Model::open(argv[1], model_params);
    if (!model) return model.error().code;
    nextn_session_params session_params = nextn_session_default_params();
    session_params.phases = argv[3][0] == 'p';

    // OpenMP allocates a record of every thread that ever sets its number of threads, once.
    auto first = model->create_session(session_params);
    if (!first || !submit(*first, 1) || !first->run(see_tokens)) return 1;

    auto session = model->create_session(session_params);
    if (!session) return session.error().code;
    for (int64_t i = 0; i < 12; ++i) {
        if (!submit(*session, 1 + 3 * i)) return 1;
    }
    const auto callback = argv[4][0] == 'a' ? see_tokens_and_allocate : see_tokens;
    long turns_that_allocate = 0;
    for (bool busy = true; busy;) {
        const long before = outside;
        counting = true;
        auto turn = session->turn(callback);
        counting = false;
        if (!turn) return turn.error().code;
        busy = *turn;
        turns_that_allocate += outside != before;
    }
    std::printf("%ld %ld %ld\n", inside, outside, turns_that_allocate);
    return 0;
}
