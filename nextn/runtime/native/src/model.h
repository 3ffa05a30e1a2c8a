#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "acl_device.h"
#include "backend.h"
#include "manifest.h"
#include "safetensors_file.h"
#include "status.h"
#include "torch_abi.h"

namespace nextn::core {

/** An artifact proven sound and fit for this machine; read-only, shared by its sessions. */
class Model {
  public:
    struct Options {
        std::string torch_library;
        bool verify_weights = false;
    };

    static Result<std::shared_ptr<const Model>> open(const std::string &directory, const Options &options);

    const Manifest &manifest() const { return manifest_; }
    const SafetensorsFile &weights() const { return weights_; }
    std::string graph_path(const GraphInfo &graph) const { return directory_ + "/" + graph.file; }
    /** What runs the graphs of one session: `executor`, or if it is null what the form of the graphs asks
     * for. */
    Result<std::unique_ptr<Backend>> make_backend(const nextn_executor *executor) const;
    int64_t state_bytes() const;

  private:
    /** Shared by sessions, and opened when the first of them needs it. */
    struct LazyDevice {
        std::mutex mutex;
        std::shared_ptr<const AclDevice> device;
    };

    Model() = default;
    Status check(const Options &options);
    Status check_isa() const;
    Status check_graph_file(const GraphInfo &graph) const;
    Status check_weight_tensors() const;
    Status load_torch(const std::string &torch_library);
    Result<std::shared_ptr<const AclDevice>> device() const;

    std::string directory_;
    Manifest manifest_;
    SafetensorsFile weights_;
    TorchApi torch_{};
    mutable LazyDevice device_;
};

}  // namespace nextn::core
