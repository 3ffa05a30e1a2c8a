#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "aoti_library.h"
#include "backend.h"
#include "torch_abi.h"

namespace nextn {

class AotiGraph;

/** Replays AOTInductor shared objects on the CPU: weights, state and inputs are constants that we own. */
class AotiBackend : public Backend {
  public:
    explicit AotiBackend(const TorchApi &torch);
    ~AotiBackend() override;

    Result<Graph *> load(const GraphInfo &info, const std::string &path) override;
    Status bind(Graph *graph, const TensorTable &tensors) override;
    Status replay(Graph *graph) override;
    Status sync() override { return {}; }
    Result<const int64_t *> read_results(const int64_t *block) override { return block; }

  private:
    Result<AtenTensor *> tensor_handle(const std::string &name, const BoundTensor &tensor);

    const TorchApi torch_;
    std::unordered_map<std::string, TensorHandle> handles_;
    // Containers point at the handles, so they go first.
    std::vector<std::unique_ptr<AotiGraph>> graphs_;
};

}  // namespace nextn
