// A host that uses ACL without torch: captures a copy on one stream, reads the device inside the capture if
// it is asked to, and gives everything back. Prints "CODE-OF-THE-READ REPLAYED LIVE-BYTES".

#include <acl/acl.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" uint64_t fake_cann_live_bytes();

namespace {

void check(aclError error) {
    if (error != ACL_SUCCESS) std::exit(1);
}

}  // namespace

int main(int argc, char **arguments) {
    const bool reads = argc > 1 && std::strcmp(arguments[1], "read") == 0;
    const char sent[] = "replayed";
    char received[sizeof sent] = {};
    void *source = nullptr;
    void *target = nullptr;
    aclrtStream stream = nullptr;
    aclmdlRI graph = nullptr;

    check(aclInit(nullptr));
    check(aclrtSetDevice(0));
    check(aclrtCreateStream(&stream));
    check(aclrtMalloc(&source, sizeof sent, ACL_MEM_MALLOC_HUGE_FIRST));
    check(aclrtMalloc(&target, sizeof sent, ACL_MEM_MALLOC_HUGE_FIRST));
    check(aclrtMemcpy(source, sizeof sent, sent, sizeof sent, ACL_MEMCPY_HOST_TO_DEVICE));

    check(aclmdlRICaptureBegin(stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    check(aclrtMemcpyAsync(target, sizeof sent, source, sizeof sent, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    const aclError read =
        reads ? aclrtMemcpy(received, sizeof sent, source, sizeof sent, ACL_MEMCPY_DEVICE_TO_HOST) : 0;
    check(aclmdlRICaptureEnd(stream, &graph));

    check(aclrtMemset(target, sizeof sent, 0, sizeof sent));
    check(aclmdlRIExecuteAsync(graph, stream));
    check(aclrtSynchronizeStream(stream));
    check(aclrtMemcpy(received, sizeof sent, target, sizeof sent, ACL_MEMCPY_DEVICE_TO_HOST));
    check(aclmdlRIDestroy(graph));
    check(aclrtFree(source));
    check(aclrtFree(target));
    check(aclrtDestroyStream(stream));
    check(aclFinalize());
    std::printf("%d %s %lu\n", read, received, static_cast<unsigned long>(fake_cann_live_bytes()));
}
