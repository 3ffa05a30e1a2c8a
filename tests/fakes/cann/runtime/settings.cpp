#include "settings.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

const char *setting(const char *name, const char *otherwise) {
    const char *value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : otherwise;
}

bool is_on(const char *name) {
    return std::strcmp(setting(name, "0"), "0") != 0;
}

std::atomic<bool> &strictness() {
    static std::atomic<bool> strict{is_on("FAKE_CANN_STRICT")};
    return strict;
}

}  // namespace

uint32_t fake_cann::device_count() {
    return static_cast<uint32_t>(std::strtoul(setting("FAKE_CANN_DEVICES", "1"), nullptr, 10));
}

const char *fake_cann::soc_name() {
    return setting("FAKE_CANN_SOC", "Ascend910_9391");
}

uint64_t fake_cann::device_bytes() {
    return std::strtoull(setting("FAKE_CANN_DEVICE_BYTES", "8589934592"), nullptr, 10);
}

bool fake_cann::threads_start_bare() {
    return is_on("FAKE_CANN_BARE_THREADS");
}

bool fake_cann::is_custom_op(const std::string &type) {
    const std::string all = std::string(",") + setting("FAKE_CANN_CUSTOM_OPS", "") + ",";
    return all.find("," + type + ",") != std::string::npos;
}

bool fake_cann::is_strict() {
    return strictness();
}

int32_t fake_cann_set_strict(int32_t strict) {
    return strictness().exchange(strict != 0);
}
