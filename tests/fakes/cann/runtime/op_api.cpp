// Kernel launches, which only go to the log, and the opaque argument objects that lead up to one.
//
// The aclnn functions have no header in the wheel, so their types are not spelt out: a created object is a
// handle that nothing looks into, and the generated destroy functions do nothing.

#include <acl/acl.h>
#include <acl/acl_op_compiler.h>

#include "capture.h"

using namespace fake_cann;

namespace {

/** One identity serves: torch_npu compares these with null and passes them on. */
void *any_object() {
    static char identity[64];
    return identity;
}

}  // namespace

extern "C" {

/** What every generated aclnnX(workspace, bytes, executor, stream) jumps to. */
int32_t fake_cann_launch(const char *name, aclrtStream stream) {
    return submit(stream, {"launch", name});
}

void *aclCreateTensor() {
    return any_object();
}
void *aclCreateScalar() {
    return any_object();
}
void *aclCreateIntArray() {
    return any_object();
}
void *aclCreateBoolArray() {
    return any_object();
}
void *aclCreateFloatArray() {
    return any_object();
}
void *aclCreateTensorList() {
    return any_object();
}
void *aclCreateScalarList() {
    return any_object();
}

}  // extern "C"

aclTensorDesc *aclCreateTensorDesc(aclDataType, int, const int64_t *, aclFormat) {
    return static_cast<aclTensorDesc *>(any_object());
}

aclopAttr *aclopCreateAttr() {
    return static_cast<aclopAttr *>(any_object());
}

aclError aclopCompileAndExecute(const char *type, int, const aclTensorDesc *const[],
                                const aclDataBuffer *const[], int, const aclTensorDesc *const[],
                                aclDataBuffer *const[], const aclopAttr *, aclopEngineType, aclopCompileType,
                                const char *, aclrtStream stream) {
    return fake_cann_launch(type, stream);
}

// By a handle that tells no name.
aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle, uint32_t, aclrtStream stream, aclrtLaunchKernelCfg *,
                                       void *, size_t, aclrtPlaceHolderInfo *, size_t) {
    return fake_cann_launch("kernel by handle", stream);
}
