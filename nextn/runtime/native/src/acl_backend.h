#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "acl_device.h"
#include "acl_graph.h"
#include "acl_memory.h"
#include "backend.h"

namespace nextn::core {

/**
 * Replays `.om` graphs on an NPU. State and inputs stay in device memory; what the host writes is copied to
 * them in the order of the stream, and a state buffer is copied back when it is read, the result block once a
 * round.
 */
class AclBackend : public Backend {
  public:
    explicit AclBackend(std::shared_ptr<const AclDevice> device);
    ~AclBackend() override;

    Status attach(const TensorTable &tensors) override;
    Result<std::vector<Graph *>> load(const std::vector<GraphFile> &files) override;
    Status write(const HostWrite &change) override;
    Status replay(Graph *graph) override;
    Status sync() override;
    Status read(const std::string &state) override;

  private:
    /** A tensor of the session; `staging` is pinned memory of its size, for what is copied while graphs run.
     */
    struct DeviceTensor {
        DeviceBuffer buffer;
        uint8_t *staging = nullptr;
        void *host = nullptr;
    };

    Status place_buffers(const TensorTable &tensors);
    Status place_staging(const TensorTable &tensors);
    bool is_being_copied(const HostWrite &change) const;
    Status wait();

    const std::shared_ptr<const AclDevice> device_;
    const AclLibrary &acl_;
    AclHandle<void *> stream_;
    AclArena buffers_;
    AclHandle<void *> staging_;
    AclArena work_;
    DeviceBuffer output_; /**< of every graph: nothing reads it, state has the same rows */
    std::unordered_map<std::string, DeviceTensor> tensors_;
    std::vector<std::unique_ptr<AclGraph>> graphs_;
    std::vector<HostWrite> copies_; /**< under way to the device, out of staging memory */
    bool busy_ = false;             /**< whether the stream has something to wait for */
};

}  // namespace nextn::core
