#include "log.h"

#include <deque>
#include <mutex>
#include <utility>

namespace {

// Never destroyed: torch_npu frees memory and streams from destructors that run after ours.
std::mutex &log_mutex() {
    static auto &mutex = *new std::mutex;
    return mutex;
}

// A deque, so that the texts handed out stay where they are while the log grows.
std::deque<fake_cann::Entry> &entries() {
    static auto &all = *new std::deque<fake_cann::Entry>;
    return all;
}

}  // namespace

void fake_cann::note(Entry entry) {
    const std::lock_guard<std::mutex> lock(log_mutex());
    entries().push_back(std::move(entry));
}

size_t fake_cann_log_size() {
    const std::lock_guard<std::mutex> lock(log_mutex());
    return entries().size();
}

int32_t fake_cann_log_get(size_t index, fake_cann_record *record) {
    const std::lock_guard<std::mutex> lock(log_mutex());
    if (index >= entries().size()) return 1;
    const fake_cann::Entry &entry = entries()[index];
    *record = {entry.kind,   entry.name.c_str(), entry.detail.c_str(), entry.bytes,   entry.tasks,
               entry.stream, entry.error,        entry.captured,       entry.blocking};
    return 0;
}

void fake_cann_log_clear() {
    const std::lock_guard<std::mutex> lock(log_mutex());
    entries().clear();
}
