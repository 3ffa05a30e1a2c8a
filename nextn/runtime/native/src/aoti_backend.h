#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "aoti_library.h"
#include "backend.h"
#include "torch_abi.h"

namespace nextn::core {

class AotiGraph;

/** Replays AOTInductor shared objects on the CPU: weights, state and inputs are constants that we own. */
class AotiBackend : public Backend {
  public:
    explicit AotiBackend(const TorchApi &torch);
    ~AotiBackend() override;

    Status attach(const TensorTable &tensors) override;
    Result<std::vector<Graph *>> load(const std::vector<GraphFile> &files) override;
    // Graphs run in the host's own memory, to their end.
    Status write(const HostWrite &) override { return {}; }
    Status replay(Graph *graph) override;
    Status sync() override { return {}; }
    Status read(const std::string &) override { return {}; }

  private:
    Status bind(AotiGraph *graph);
    Result<AtenTensor *> tensor_handle(const std::string &name, const BoundTensor &tensor);

    const TorchApi torch_;
    const TensorTable *tensors_ = nullptr;
    std::unordered_map<std::string, TensorHandle> handles_;
    // Containers point at the handles, so they go first.
    std::vector<std::unique_ptr<AotiGraph>> graphs_;
};

}  // namespace nextn::core
