// The few fields of ge.proto.ModelDef that say which tensors a graph takes and gives.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fake_cann {

struct ModelTensor {
    std::string name;
    /** Of ge::DataType. */
    int32_t dtype = 0;
    std::vector<int64_t> dims;

    /** 0 if a dimension is unknown, or the type has no size of its own. */
    size_t bytes() const;
};

struct ModelDef {
    std::vector<ModelTensor> inputs;
    std::vector<ModelTensor> outputs;
    size_t num_ops = 0;
    size_t file_bytes = 0;
    bool has_outputs = false;
};

/** What is not a ModelDef comes back without outputs: `has_outputs` is false. */
ModelDef read_model_def(const std::string &bytes);

}  // namespace fake_cann
