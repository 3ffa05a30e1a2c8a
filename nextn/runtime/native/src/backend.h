#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "manifest.h"
#include "status.h"
#include "tensor.h"

namespace nextn::core {

/** Memory of every tensor a session's graphs may bind, by manifest name. */
using TensorTable = std::unordered_map<std::string, BoundTensor>;

/** Bytes of a state buffer or an input that the host changed. */
struct HostWrite {
    const std::string *tensor;
    size_t offset;
    size_t bytes;
};

/** A graph that a session will launch. */
struct GraphFile {
    const GraphInfo *info;
    std::string path;
};

/** A graph a backend has loaded; valid as long as the backend. */
class Graph {
  public:
    virtual ~Graph() = default;
};

/** How a session runs graphs on one kind of device. One object per session; not thread-safe. */
class Backend {
  public:
    virtual ~Backend() = default;

    /** Takes over the session's memory, which outlives the backend. What is not zero in it comes as a write.
     */
    virtual Status attach(const TensorTable &tensors) = 0;
    /** Loads graphs, once and all, if they read what the manifest declares for them and nothing else. */
    virtual Result<std::vector<Graph *>> load(const std::vector<GraphFile> &files) = 0;
    /** Makes the graphs launched from here on see what the host wrote. */
    virtual Status write(const HostWrite &change) = 0;
    /** Launches the graph on what its state and inputs hold; on return it may still be running. */
    virtual Status replay(Graph *graph) = 0;
    /** Waits for every launched graph. */
    virtual Status sync() = 0;
    /** Waits for every launched graph, then makes the session's memory of a state buffer current. */
    virtual Status read(const std::string &state) = 0;
};

}  // namespace nextn::core
