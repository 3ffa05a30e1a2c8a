#include "acl_device.h"

namespace nextn::core {

Result<std::shared_ptr<const AclDevice>> AclDevice::open(const Manifest &manifest,
                                                         const SafetensorsFile &weights) {
    const Result<const AclLibrary *> acl = AclLibrary::load();
    NEXTN_RETURN_IF_ERROR(acl);
    std::shared_ptr<AclDevice> device(new AclDevice(**acl));
    NEXTN_RETURN_IF_ERROR(device->create_context());
    NEXTN_RETURN_IF_ERROR(device->upload(manifest, weights));
    return std::shared_ptr<const AclDevice>(std::move(device));
}

AclDevice::~AclDevice() {
    const AclContextScope scope(acl_, context());
    memory_.reset();
    // The scope gives the thread its own context back after this one is gone.
    context_.reset();
}

Status AclDevice::create_context() {
    constexpr int32_t first_visible = 0;
    // ACL makes a new context the calling thread's.
    const AclContextKeeper keeper(acl_);
    void *context = nullptr;
    NEXTN_RETURN_IF_ERROR(acl_.check("aclrtCreateContext", acl_.aclrtCreateContext(&context, first_visible)));
    context_ = {context, acl_.aclrtDestroyContext};
    return {};
}

Status AclDevice::upload(const Manifest &manifest, const SafetensorsFile &weights) {
    const AclContextScope scope(acl_, context());
    NEXTN_RETURN_IF_ERROR(scope.status());
    size_t total = 0;
    for (const std::string &name : manifest.weights.names) {
        total += AclArena::padded(weights.find(name)->bytes());
    }
    Result<AclArena> memory = AclArena::create(acl_, total);
    NEXTN_RETURN_IF_ERROR(memory);
    memory_ = std::move(*memory);
    for (const std::string &name : manifest.weights.names) {
        const BoundTensor &weight = *weights.find(name);
        const size_t bytes = weight.bytes();
        uint8_t *const place = memory_.take(bytes);
        weights_[name] = place;
        if (bytes == 0) continue;
        const int code = acl_.aclrtMemcpy(place, bytes, weight.data, bytes, acl_host_to_device);
        NEXTN_RETURN_IF_ERROR(acl_.check("aclrtMemcpy", code));
    }
    return {};
}

}  // namespace nextn::core
