#include "torch_abi.h"

#include <dlfcn.h>

namespace nextn::core {
namespace {

constexpr const char *soname = "libtorch_cpu.so";

template <typename Function>
bool resolve(void *library, const char *name, Function *function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
}

Result<void *> open_library(const std::string &path) {
    // Graphs resolve their symbols globally; a libtorch that Python imported is loaded but not global.
    void *library = nullptr;
    if (path.empty()) library = dlopen(soname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    if (library == nullptr) library = dlopen(path.empty() ? soname : path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) return runtime_error("cannot load libtorch_cpu").found(dlerror());
    return library;
}

Result<std::array<int32_t, num_dtypes>> resolve_dtypes(void *library) {
    std::array<int32_t, num_dtypes> numbers{};
    for (size_t i = 0; i < num_dtypes; ++i) {
        const std::string name = concat("aoti_torch_dtype_", dtype_name(static_cast<DType>(i)));
        int32_t (*number)() = nullptr;
        if (!resolve(library, name.c_str(), &number)) {
            return runtime_error("libtorch_cpu lacks a symbol").expected(name);
        }
        numbers[i] = number();
    }
    return numbers;
}

}  // namespace

Result<TorchApi> TorchApi::load(const std::string &path) {
    const Result<void *> library = open_library(path);
    NEXTN_RETURN_IF_ERROR(library);
    TorchApi api{};
    const bool complete =
        resolve(*library, "aoti_torch_abi_version", &api.abi_version) &&
        resolve(*library, "aoti_torch_device_type_cpu", &api.device_type_cpu) &&
        resolve(*library, "aoti_torch_create_tensor_from_blob", &api.create_tensor_from_blob) &&
        resolve(*library, "aoti_torch_delete_tensor_object", &api.delete_tensor_object);
    if (!complete) return runtime_error("libtorch_cpu lacks a symbol").found(dlerror());
    const auto dtypes = resolve_dtypes(*library);
    NEXTN_RETURN_IF_ERROR(dtypes);
    api.dtypes = *dtypes;
    resolve(*library, "torch_exception_get_what_without_backtrace", &api.last_exception);
    resolve(*library, "omp_get_max_threads", &api.get_max_threads);
    resolve(*library, "omp_set_num_threads", &api.set_num_threads);
    return api;
}

std::string TorchApi::version() const {
    const uint64_t version = abi_version();
    return concat(version >> 56 & 255, ".", version >> 48 & 255, ".", version >> 40 & 255);
}

Status TorchApi::check_version(const std::string &expected, const std::string &manifest) const {
    // "2.13.0+cpu" and "2.13.0" are one version; the suffix names the build.
    const std::string release = expected.substr(0, expected.find_first_not_of("0123456789."));
    if (release == version()) return {};
    return artifact_error("compiled with another torch")
        .file(manifest)
        .key("producer.torch")
        .expected(expected)
        .found(version());
}

std::string TorchApi::exception_text() const {
    const char *text = last_exception == nullptr ? nullptr : last_exception();
    return text == nullptr || *text == '\0' ? "no text" : text;
}

}  // namespace nextn::core
