#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nextn::core {

enum class DType { float32, bfloat16, float16, int64, int32, int8, uint8 };

constexpr size_t num_dtypes = 7;

int64_t element_size(DType dtype);
const char *dtype_name(DType dtype);
std::optional<DType> dtype_from_name(const std::string &name);
std::optional<DType> dtype_from_safetensors(const std::string &name);

using Shape = std::vector<int64_t>;

std::string shape_text(const Shape &shape);

/** Bytes of a contiguous tensor; nothing if a dimension is negative or the product passes 2^62. */
std::optional<int64_t> tensor_bytes(DType dtype, const Shape &shape);

enum class TensorKind { weight, state, input };

/** One tensor a graph binds by name. `bytes` always equals `tensor_bytes(dtype, shape)`. */
struct TensorInfo {
    std::string name;
    TensorKind kind = TensorKind::weight;
    DType dtype = DType::float32;
    Shape shape;
    int64_t bytes = 0;
};

/** A tensor and the host memory it lives in. */
struct BoundTensor {
    TensorKind kind;
    DType dtype;
    Shape shape;
    void *data;

    size_t bytes() const { return static_cast<size_t>(*tensor_bytes(dtype, shape)); }
};

}  // namespace nextn::core
