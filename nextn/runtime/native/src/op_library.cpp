#include "op_library.h"

#include <dlfcn.h>

#include <string>

namespace nextn::core {

Status load_op_library() {
    Dl_info self;
    std::string path = "libnextn_ops.so";
    if (dladdr(reinterpret_cast<const void *>(&load_op_library), &self) != 0 && self.dli_fname != nullptr) {
        const std::string library = self.dli_fname;
        path = library.substr(0, library.rfind('/') + 1) + path;
    }
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
    return runtime_error("cannot load the kernels of this library").file(path).found(dlerror());
}

}  // namespace nextn::core
