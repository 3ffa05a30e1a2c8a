#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "acl_library.h"
#include "acl_memory.h"
#include "manifest.h"
#include "safetensors_file.h"
#include "status.h"

namespace nextn::core {

/**
 * A model's share of an NPU: a context of its own, so that other users of ACL in the process are left alone,
 * and the weights, uploaded once for all sessions.
 */
class AclDevice {
  public:
    /** On the first of the devices that ASCEND_RT_VISIBLE_DEVICES leaves visible. */
    static Result<std::shared_ptr<const AclDevice>> open(const Manifest &manifest,
                                                         const SafetensorsFile &weights);
    ~AclDevice();

    const AclLibrary &acl() const { return acl_; }
    void *context() const { return context_.get(); }
    /** Where a weight of the manifest lies. */
    uint8_t *weight(const std::string &name) const { return weights_.at(name); }

  private:
    explicit AclDevice(const AclLibrary &acl) : acl_(acl) {}
    Status create_context();
    Status upload(const Manifest &manifest, const SafetensorsFile &weights);

    const AclLibrary &acl_;
    AclHandle<void *> context_;
    AclArena memory_;
    std::unordered_map<std::string, uint8_t *> weights_;
};

}  // namespace nextn::core
