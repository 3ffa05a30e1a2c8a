#include "tensor.h"

#include <array>

namespace nextn::core {
namespace {

struct DTypeFacts {
    const char *name;
    const char *safetensors;
    int64_t size;
};

constexpr std::array<DTypeFacts, num_dtypes> facts = {{{"float32", "F32", 4},
                                                       {"bfloat16", "BF16", 2},
                                                       {"float16", "F16", 2},
                                                       {"int64", "I64", 8},
                                                       {"int32", "I32", 4},
                                                       {"int8", "I8", 1},
                                                       {"uint8", "U8", 1}}};

const DTypeFacts &facts_of(DType dtype) {
    return facts[static_cast<size_t>(dtype)];
}

std::optional<DType> find_dtype(const std::string &name, const char *DTypeFacts::*spelling) {
    for (size_t i = 0; i < facts.size(); ++i) {
        if (name == facts[i].*spelling) return static_cast<DType>(i);
    }
    return std::nullopt;
}

}  // namespace

int64_t element_size(DType dtype) {
    return facts_of(dtype).size;
}
const char *dtype_name(DType dtype) {
    return facts_of(dtype).name;
}
std::optional<DType> dtype_from_name(const std::string &name) {
    return find_dtype(name, &DTypeFacts::name);
}
std::optional<DType> dtype_from_safetensors(const std::string &name) {
    return find_dtype(name, &DTypeFacts::safetensors);
}

std::string shape_text(const Shape &shape) {
    std::string text = "[";
    for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
    return text + "]";
}

std::optional<int64_t> tensor_bytes(DType dtype, const Shape &shape) {
    int64_t bytes = element_size(dtype);
    for (const int64_t size : shape) {
        if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
        if (bytes > int64_t{1} << 62) return std::nullopt;
    }
    return bytes;
}

}  // namespace nextn::core
