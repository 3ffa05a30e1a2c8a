// What the fake does not do and must not seem to do: a generated stub would answer "done", and give nothing.

#include <acl/acl.h>

namespace {

constexpr aclError unsupported = ACL_ERROR_RT_FEATURE_NOT_SUPPORT;

}  // namespace

// Addresses apart from memory: torch's expandable segments.
aclError aclrtReserveMemAddress(void **, size_t, size_t, void *, uint64_t) {
    return unsupported;
}
aclError aclrtMallocPhysical(aclrtDrvMemHandle *, size_t, const aclrtPhysicalMemProp *, uint64_t) {
    return unsupported;
}
aclError aclrtMapMem(void *, size_t, size_t, aclrtDrvMemHandle, uint64_t) {
    return unsupported;
}

// Memory and events of other processes.
aclError aclrtMemImportFromShareableHandle(uint64_t, int32_t, aclrtDrvMemHandle *) {
    return unsupported;
}
aclError aclrtIpcMemImportByKey(void **, const char *, uint64_t) {
    return unsupported;
}
aclError aclrtIpcOpenEventHandle(aclrtIpcEventHandle, aclrtEvent *) {
    return unsupported;
}
aclError aclrtHostRegister(void *, uint64_t, aclrtHostRegisterType, void **) {
    return unsupported;
}

// Many copies in one call.
aclError aclrtMemcpyBatch(void **, size_t *, void **, size_t *, size_t, aclrtMemcpyBatchAttr *, size_t *,
                          size_t, size_t *) {
    return unsupported;
}
aclError aclrtMemcpyBatchAsync(void **, size_t *, void **, size_t *, size_t, aclrtMemcpyBatchAttr *, size_t *,
                               size_t, size_t *, aclrtStream) {
    return unsupported;
}

// Control flow inside a captured graph.
aclError aclmdlRICaptureToModelRIBegin(aclrtStream, aclmdlRI, aclmdlRICaptureMode) {
    return unsupported;
}
aclError aclmdlRICondHandleCreate(aclmdlRI, uint32_t, aclmdlRICondHandleFlag, aclmdlRICondHandle *) {
    return unsupported;
}
aclError aclmdlRIAddCondTask(aclmdlRICondTaskParams, aclrtStream, uint32_t) {
    return unsupported;
}
