#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "acl_library.h"
#include "acl_memory.h"
#include "backend.h"
#include "status.h"

namespace nextn::core {

/** A place in device memory. */
struct DeviceBuffer {
    uint8_t *place = nullptr;
    size_t bytes = 0;
};

/** The names that tensors have as inputs of graphs, whichever graph it is. */
using AclInputNames = std::unordered_set<std::string>;

/** GE's names have no dots. */
std::string acl_input_name(std::string tensor);

/** One `.om` file, loaded and bound: a replay has nothing left to build. Calls need a current context. */
class AclGraph : public Graph {
  public:
    /** What a graph of this file needs: memory it may share with others that never run beside it, and its
     * own. */
    struct Needs {
        size_t work_bytes = 0;
        size_t weight_bytes = 0;
    };
    static Result<Needs> query(const AclLibrary &acl, const std::string &path);

    /**
     * Refuses a file whose inputs are not the graph's tensors, by index, or that returns anything but the
     * graph's block. Inputs are told apart by size, and by name if it is one of `known`.
     */
    static Result<std::unique_ptr<AclGraph>> load(const AclLibrary &acl, const GraphFile &file,
                                                  const Needs &needs, const DeviceBuffer &work,
                                                  const AclInputNames &known);

    /** `inputs` are the graph's tensors in their order; the graph writes its block of rows to `output`. */
    Status bind(const std::vector<DeviceBuffer> &inputs, const DeviceBuffer &output);
    Status launch(void *stream) const;

  private:
    /** A dataset and the buffers in it, which it does not own. */
    struct Dataset {
        std::vector<AclHandle<const aclDataBuffer *>> buffers;
        AclHandle<const aclmdlDataset *> handle;
        aclmdlDataset *get() const { return const_cast<aclmdlDataset *>(handle.get()); }
    };

    AclGraph(const AclLibrary &acl, const GraphFile &file) : acl_(acl), key_(file.info->key()) {}
    Status check_inputs(const GraphFile &file, const AclInputNames &known) const;
    Status check_output(const GraphFile &file) const;
    Result<Dataset> make_dataset(const std::vector<DeviceBuffer> &buffers) const;

    const AclLibrary &acl_;
    const std::string key_;
    AclArena weights_; /**< constants inside the file */
    AclHandle<uint32_t> model_;
    AclHandle<aclmdlDesc *> description_;
    Dataset inputs_;
    Dataset outputs_;
};

}  // namespace nextn::core
