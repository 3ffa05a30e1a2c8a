#include "acl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <mutex>

namespace nextn::core {
namespace {

constexpr char library_name[] = "libascendcl.so";

const AclLibrary *loaded = nullptr;

template <typename Function>
Status look_up(void *library, const char *name, Function *function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function != nullptr) return {};
    return runtime_error("CANN's runtime lacks a function").file(library_name).key(name);
}

}  // namespace

Result<const AclLibrary *> AclLibrary::load() {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (loaded != nullptr) return loaded;
    std::unique_ptr<AclLibrary> library(new AclLibrary);
    NEXTN_RETURN_IF_ERROR(library->open());
    NEXTN_RETURN_IF_ERROR(library->initialize());
    loaded = library.release();
    return loaded;
}

Status AclLibrary::open() {
    void *const library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return runtime_error("cannot load CANN's runtime; source its set_env.sh")
            .file(library_name)
            .found(dlerror());
    }
#define NEXTN_ACL_LOOK_UP(result, name, parameters) NEXTN_RETURN_IF_ERROR(look_up(library, #name, &name));
    NEXTN_ACL_FUNCTIONS(NEXTN_ACL_LOOK_UP)
#undef NEXTN_ACL_LOOK_UP
    return {};
}

Status AclLibrary::initialize() const {
    const int code = aclInit(nullptr);
    if (code == acl_repeat_initialize) return {};
    NEXTN_RETURN_IF_ERROR(check("aclInit", code));
    // Registered after CANN's own handlers, it runs before them.
    std::atexit([] {
        if (loaded != nullptr) loaded->aclFinalize();
    });
    return {};
}

Status AclLibrary::check(const char *call, int code) const {
    return code == acl_success ? Status() : failure(call, concat("error ", code));
}

Status AclLibrary::check(const char *call, const void *pointer) const {
    return pointer != nullptr ? Status() : failure(call, "NULL");
}

Status AclLibrary::failure(const char *call, const std::string &reason) const {
    const char *const text = aclGetRecentErrMsg();
    return runtime_error(concat(call, " failed")).found(text == nullptr ? reason : reason + ": " + text);
}

}  // namespace nextn::core
