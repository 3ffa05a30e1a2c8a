// Compiles only if libnextn's declarations of ACL are those of CANN's headers, but for enums, which it takes
// as int.

#include <acl/acl.h>

#include <type_traits>

#include "acl_abi.h"

namespace {

template <typename Type, bool is_enum = std::is_enum_v<Type>>
struct Plain {
    using type = Type;
};
template <typename Type>
struct Plain<Type, true> {
    static_assert(sizeof(Type) == sizeof(int));
    using type = int;
};

template <typename Function>
struct PlainFunction;
template <typename Result, typename... Parameters>
struct PlainFunction<Result (*)(Parameters...)> {
    using type = typename Plain<Result>::type (*)(typename Plain<Parameters>::type...);
};

#define CHECK_SIGNATURE(result, name, parameters) \
    static_assert(                                \
        std::is_same_v<PlainFunction<decltype(&::name)>::type, decltype(nextn::core::AclApi::name)>, #name);
NEXTN_ACL_FUNCTIONS(CHECK_SIGNATURE)

static_assert(nextn::core::acl_success == ACL_SUCCESS);
static_assert(nextn::core::acl_repeat_initialize == ACL_ERROR_REPEAT_INITIALIZE);
static_assert(nextn::core::acl_huge_pages_first == ACL_MEM_MALLOC_HUGE_FIRST);
static_assert(nextn::core::acl_host_to_device == ACL_MEMCPY_HOST_TO_DEVICE);
static_assert(nextn::core::acl_device_to_host == ACL_MEMCPY_DEVICE_TO_HOST);
#ifdef WRONG
static_assert(std::is_same_v<PlainFunction<decltype(&::aclrtMemset)>::type,
                             decltype(nextn::core::AclApi::aclrtMemcpy)>);
#endif

}  // namespace
