#include "faults.h"

#include <mutex>
#include <string>

namespace {

struct Fault {
    std::mutex mutex;
    std::string function;
    uint32_t calls_left = 0;
    bool failed = false;
};

Fault &fault() {
    static auto &wanted = *new Fault;
    return wanted;
}

thread_local std::string text;

}  // namespace

bool fake_cann::is_to_fail(const char *function) {
    const std::lock_guard<std::mutex> lock(fault().mutex);
    if (fault().calls_left == 0 || fault().function != function || --fault().calls_left > 0) return false;
    fault().failed = true;
    // Several lines, as CANN's messages have.
    text = "EZ9999: a fault for the test\n        in " + fault().function + "\n";
    return true;
}

const char *fake_cann::fault_text() {
    return text.empty() ? nullptr : text.c_str();
}

void fake_cann_fail(const char *function, uint32_t nth) {
    const std::lock_guard<std::mutex> lock(fault().mutex);
    fault().function = function == nullptr ? "" : function;
    fault().calls_left = function == nullptr ? 0 : nth;
    fault().failed = false;
    text.clear();
}

int32_t fake_cann_has_failed() {
    const std::lock_guard<std::mutex> lock(fault().mutex);
    return fault().failed;
}
