// Counts the heap allocations that one nextn_session_run makes. With graphs that allocate nothing the count
// is the library's own.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "nextn.hpp"

extern "C" void *__libc_malloc(size_t size);
extern "C" void *__libc_calloc(size_t count, size_t size);
extern "C" void *__libc_realloc(void *place, size_t size);
extern "C" void *__libc_memalign(size_t alignment, size_t size);

namespace {

bool counting = false;
long allocations = 0;

void count() {
    if (counting) ++allocations;
}

bool see_tokens(uint64_t, const int64_t *, size_t) {
    return true;
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

int main(int argc, char **argv) {
    if (argc != 4) return NEXTN_USAGE;
    nextn_model_params model_params = nextn_model_default_params();
    model_params.torch_library = argv[2];
    auto model = nextn::Model::open(argv[1], model_params);
    nextn_session_params session_params = nextn_session_default_params();
    session_params.phases = argv[3][0] == 'p';
    auto session = model->create_session(session_params);
    if (!session) return session.error().code;
    for (int64_t i = 0; i < 12; ++i) {
        const std::vector<int64_t> prompt(static_cast<size_t>(1 + 3 * i), i);
        nextn_request request = nextn_request_default();
        request.prompt = prompt.data();
        request.prompt_length = prompt.size();
        request.max_new_tokens = 20;
        if (!session->submit(request)) return 1;
    }

    delete new int(1);
    counting = true;
    delete new std::vector<int>(7);
    const long control = allocations;
    const auto done = session->run(see_tokens);
    counting = false;
    if (!done) return done.error().code;
    std::printf("control %ld run %ld\n", control, allocations - control);
    return 0;
}
