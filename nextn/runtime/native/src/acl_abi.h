#pragma once

#include <cstddef>
#include <cstdint>

// CANN's libascendcl.so as far as libnextn calls it, so that no CANN is needed to build. ACL's enums are
// passed as int here.

struct aclmdlDesc;
struct aclmdlDataset;
struct aclDataBuffer;

#define NEXTN_ACL_FUNCTIONS(FUNCTION)                                                                   \
    FUNCTION(int, aclInit, (const char *config))                                                        \
    FUNCTION(int, aclFinalize, ())                                                                      \
    FUNCTION(const char *, aclGetRecentErrMsg, ())                                                      \
    FUNCTION(int, aclrtCreateContext, (void **context, int32_t device))                                 \
    FUNCTION(int, aclrtDestroyContext, (void *context))                                                 \
    FUNCTION(int, aclrtGetCurrentContext, (void **context))                                             \
    FUNCTION(int, aclrtSetCurrentContext, (void *context))                                              \
    FUNCTION(int, aclrtCreateStream, (void **stream))                                                   \
    FUNCTION(int, aclrtDestroyStream, (void *stream))                                                   \
    FUNCTION(int, aclrtSynchronizeStream, (void *stream))                                               \
    FUNCTION(int, aclrtMalloc, (void **place, size_t bytes, int policy))                                \
    FUNCTION(int, aclrtFree, (void *place))                                                             \
    FUNCTION(int, aclrtMallocHost, (void **place, size_t bytes))                                        \
    FUNCTION(int, aclrtFreeHost, (void *place))                                                         \
    FUNCTION(int, aclrtMemset, (void *place, size_t room, int32_t value, size_t bytes))                 \
    FUNCTION(int, aclrtMemcpy, (void *target, size_t room, const void *source, size_t bytes, int kind)) \
    FUNCTION(int, aclrtMemcpyAsync,                                                                     \
             (void *target, size_t room, const void *source, size_t bytes, int kind, void *stream))     \
    FUNCTION(int, aclmdlQuerySize, (const char *path, size_t *work_bytes, size_t *weight_bytes))        \
    FUNCTION(int, aclmdlLoadFromFileWithMem,                                                            \
             (const char *path, uint32_t *model, void *work, size_t work_bytes, void *weights,          \
              size_t weight_bytes))                                                                     \
    FUNCTION(int, aclmdlUnload, (uint32_t model))                                                       \
    FUNCTION(aclmdlDesc *, aclmdlCreateDesc, ())                                                        \
    FUNCTION(int, aclmdlDestroyDesc, (aclmdlDesc * description))                                        \
    FUNCTION(int, aclmdlGetDesc, (aclmdlDesc * description, uint32_t model))                            \
    FUNCTION(size_t, aclmdlGetNumInputs, (aclmdlDesc * description))                                    \
    FUNCTION(size_t, aclmdlGetNumOutputs, (aclmdlDesc * description))                                   \
    FUNCTION(size_t, aclmdlGetInputSizeByIndex, (aclmdlDesc * description, size_t index))               \
    FUNCTION(size_t, aclmdlGetOutputSizeByIndex, (aclmdlDesc * description, size_t index))              \
    FUNCTION(const char *, aclmdlGetInputNameByIndex, (const aclmdlDesc *description, size_t index))    \
    FUNCTION(aclmdlDataset *, aclmdlCreateDataset, ())                                                  \
    FUNCTION(int, aclmdlDestroyDataset, (const aclmdlDataset *dataset))                                 \
    FUNCTION(int, aclmdlAddDatasetBuffer, (aclmdlDataset * dataset, aclDataBuffer * buffer))            \
    FUNCTION(aclDataBuffer *, aclCreateDataBuffer, (void *place, size_t bytes))                         \
    FUNCTION(int, aclDestroyDataBuffer, (const aclDataBuffer *buffer))                                  \
    FUNCTION(int, aclmdlExecuteAsync,                                                                   \
             (uint32_t model, const aclmdlDataset *inputs, aclmdlDataset *outputs, void *stream))

namespace nextn::core {

constexpr int acl_success = 0;
constexpr int acl_repeat_initialize = 100002;
constexpr int acl_huge_pages_first = 0;
constexpr int acl_host_to_device = 1;
constexpr int acl_device_to_host = 2;

struct AclApi {
#define NEXTN_ACL_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
    NEXTN_ACL_FUNCTIONS(NEXTN_ACL_MEMBER)
#undef NEXTN_ACL_MEMBER
};

}  // namespace nextn::core
