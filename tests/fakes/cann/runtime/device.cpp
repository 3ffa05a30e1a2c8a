// Initialisation, devices, versions: what torch_npu asks before it does anything.

#include <acl/acl.h>
#include <acl/acl_op_compiler.h>

#include <atomic>
#include <cstring>

#include "contexts.h"
#include "faults.h"
#include "settings.h"

namespace {

constexpr int64_t cores = 24;
constexpr char cann_version[] = "9.0.0";

std::atomic<bool> initialized{false};
thread_local int32_t current_device = 0;

}  // namespace

aclError aclInit(const char *) {
    if (fake_cann::is_to_fail(__func__)) return fake_cann::injected_fault;
    return initialized.exchange(true) ? ACL_ERROR_REPEAT_INITIALIZE : ACL_SUCCESS;
}

extern "C" int32_t fake_cann_is_initialized() {
    return initialized;
}

aclError aclFinalize() {
    return initialized.exchange(false) ? ACL_SUCCESS : ACL_ERROR_REPEAT_FINALIZE;
}

aclError aclrtGetDeviceCount(uint32_t *count) {
    *count = fake_cann::device_count();
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device) {
    if (device < 0 || static_cast<uint32_t>(device) >= fake_cann::device_count()) {
        return ACL_ERROR_RT_INVALID_DEVICEID;
    }
    current_device = device;
    fake_cann::take_default_context();
    return ACL_SUCCESS;
}

aclError aclrtGetDevice(int32_t *device) {
    *device = current_device;
    return ACL_SUCCESS;
}

aclError aclrtGetPrimaryCtxState(int32_t, uint32_t *flags, int32_t *active) {
    if (flags != nullptr) *flags = 0;
    *active = 1;
    return ACL_SUCCESS;
}

const char *aclrtGetSocName() {
    return fake_cann::soc_name();
}

// Null means no message: torch_npu then prints the code alone.
const char *aclGetRecentErrMsg() {
    return fake_cann::fault_text();
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr, int64_t *value) {
    *value = cores;
    return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t *value) {
    *value = cores;
    return ACL_SUCCESS;
}

aclError aclGetCannAttribute(aclCannAttr, int32_t *value) {
    *value = 1;
    return ACL_SUCCESS;
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t *flag) {
    *flag = 0;
    return ACL_SUCCESS;
}

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion *version) {
    *version = {};
    std::strcpy(version->version, cann_version);
    return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char *, char *version) {
    std::strcpy(version, cann_version);
    return ACL_SUCCESS;
}

size_t aclGetCompileoptSize(aclCompileOpt) {
    return 256;
}

aclError aclGetCompileopt(aclCompileOpt, char *value, size_t length) {
    if (length > 0) value[0] = '\0';
    return ACL_SUCCESS;
}
