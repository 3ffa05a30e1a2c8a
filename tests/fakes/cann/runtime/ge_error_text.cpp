// The one function of GE that gives a std::string. Its caller, torchair's _abi_compat_ge_apis.so, is built
// for libstdc++'s old string, so this file is compiled with _GLIBCXX_USE_CXX11_ABI=0 and shares no header.

#include <string>

static_assert(sizeof(std::string) == sizeof(void *), "compile with -D_GLIBCXX_USE_CXX11_ABI=0");

namespace ge {

std::string GEGetErrorMsg() {
    return "the fake GE refused the call";
}

}  // namespace ge
