#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "nextn.h"

namespace nextn::core {

/** Has a host's executor run the graphs. */
class ExternalBackend : public Backend {
  public:
    /** Refuses an executor that lacks a function. */
    static Result<std::unique_ptr<Backend>> create(const nextn_executor &executor);

    Status attach(const TensorTable &tensors) override;
    Result<std::vector<Graph *>> load(const std::vector<GraphFile> &files) override;
    Status write(const HostWrite &change) override;
    Status replay(Graph *graph) override;
    Status sync() override;
    Status read(const std::string &state) override;

  private:
    struct NamedGraph : Graph {
        explicit NamedGraph(std::string key) : key(std::move(key)) {}
        const std::string key;
    };

    explicit ExternalBackend(const nextn_executor &executor) : executor_(executor) {}

    const nextn_executor executor_;
    std::vector<std::unique_ptr<NamedGraph>> graphs_;
};

}  // namespace nextn::core
