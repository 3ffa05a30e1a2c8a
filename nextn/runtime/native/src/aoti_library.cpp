#include "aoti_library.h"

#include <dlfcn.h>

#include <utility>

namespace nextn::core {
namespace {

template <typename Function>
bool resolve_one(void *library, const char *name, Function *function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
}

}  // namespace

Result<AotiLibrary> AotiLibrary::open(const std::string &path) {
    AotiLibrary library;
    library.path_ = path;
    library.handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ == nullptr) return runtime_error("cannot load graph").file(path).found(dlerror());
    NEXTN_RETURN_IF_ERROR(library.resolve());
    return library;
}

AotiLibrary::AotiLibrary(AotiLibrary &&other) noexcept
    : path_(std::move(other.path_)), handle_(std::exchange(other.handle_, nullptr)), api_(other.api_) {}

AotiLibrary::~AotiLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
}

Status AotiLibrary::resolve() {
    const bool complete =
        resolve_one(handle_, "AOTInductorModelContainerCreateWithDevice", &api_.create) &&
        resolve_one(handle_, "AOTInductorModelContainerDelete", &api_.destroy) &&
        resolve_one(handle_, "AOTInductorModelContainerRunSingleThreaded", &api_.run) &&
        resolve_one(handle_, "AOTInductorModelContainerGetNumInputs", &api_.num_inputs) &&
        resolve_one(handle_, "AOTInductorModelContainerGetNumOutputs", &api_.num_outputs) &&
        resolve_one(handle_, "AOTInductorModelContainerGetNumConstants", &api_.num_constants) &&
        resolve_one(handle_, "AOTInductorModelContainerGetConstantName", &api_.constant_name) &&
        resolve_one(handle_, "AOTInductorModelContainerGetConstantOriginalFQN", &api_.constant_fqn) &&
        resolve_one(handle_, "AOTInductorModelContainerGetConstantFromFolded", &api_.constant_folded) &&
        resolve_one(handle_, "AOTInductorModelContainerGetConstantDtype", &api_.constant_dtype) &&
        resolve_one(handle_, "AOTInductorModelContainerGetConstantDataSize", &api_.constant_bytes) &&
        resolve_one(handle_, "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs", &api_.bind);
    if (!complete) {
        const char *reason = dlerror();
        return artifact_error("not a compiled graph").file(path_).found(reason == nullptr ? "" : reason);
    }
    resolve_one(handle_, "AOTInductorGetLastError", &api_.last_error);
    return {};
}

std::string AotiLibrary::last_error() const {
    const char *text = nullptr;
    const bool known =
        api_.last_error != nullptr && api_.last_error(&text) == 0 && text != nullptr && *text != '\0';
    return known ? text : "no text";
}

}  // namespace nextn::core
