#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "manifest.h"
#include "status.h"
#include "tensor.h"

namespace nextn {

/** Memory of every tensor a session's graphs may bind, by manifest name. */
using TensorTable = std::unordered_map<std::string, BoundTensor>;

/** A graph a backend has loaded; valid as long as the backend. */
class Graph {
  public:
    virtual ~Graph() = default;
};

/** How a session runs graphs on one kind of device. One object per session; not thread-safe. */
class Backend {
  public:
    virtual ~Backend() = default;

    /** Loads a graph and checks that it reads what the manifest declares for it and nothing else. */
    virtual Result<Graph *> load(const GraphInfo &info, const std::string &path) = 0;
    /** Gives the graph its memory, once; the memory must outlive the backend. */
    virtual Status bind(Graph *graph, const TensorTable &tensors) = 0;
    /** Launches the graph on what its state and inputs hold; on return it may still be running. */
    virtual Status replay(Graph *graph) = 0;
    /** Waits for every launched graph. */
    virtual Status sync() = 0;
    /** The result block as the host sees it after a `sync`; `block` is where graphs write it. */
    virtual Result<const int64_t *> read_results(const int64_t *block) = 0;
};

}  // namespace nextn
