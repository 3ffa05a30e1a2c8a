#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// The few functions of libtorch_cpu's C interface (aoti_torch/c/shim.h) that an operator needs. They stay
// undefined here: this library is loaded after libtorch_cpu, into the same global scope.
extern "C" {
struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque *;
using AOTITorchError = int32_t;

AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void **data);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t *dim);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t *dtype);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t **sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t **strides);
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t *sizes, const int64_t *strides,
                                        int32_t dtype, int32_t device_type, int32_t device_index,
                                        AtenTensorHandle *tensor);
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_int64();
}

namespace nextn::ops {

constexpr AOTITorchError ok = 0;
constexpr AOTITorchError failure = 1;

inline int32_t dtype_number(const float *) {
    return aoti_torch_dtype_float32();
}
inline int32_t dtype_number(const int64_t *) {
    return aoti_torch_dtype_int64();
}

/** A CPU tensor of `Rank` dimensions as a graph passes it; strides in elements. */
template <typename T, size_t Rank>
struct TensorView {
    T *data = nullptr;
    std::array<int64_t, Rank> sizes{};
    std::array<int64_t, Rank> strides{};

    /** Fails on another dtype or rank: the graph was compiled against another version of the operator. */
    AOTITorchError open(AtenTensorHandle tensor) {
        int64_t dim = 0;
        int32_t dtype = 0;
        void *memory = nullptr;
        int64_t *tensor_sizes = nullptr, *tensor_strides = nullptr;
        if (aoti_torch_get_dim(tensor, &dim) || aoti_torch_get_dtype(tensor, &dtype) ||
            aoti_torch_get_data_ptr(tensor, &memory) || aoti_torch_get_sizes(tensor, &tensor_sizes) ||
            aoti_torch_get_strides(tensor, &tensor_strides)) {
            return failure;
        }
        if (dim != int64_t{Rank} || dtype != dtype_number(static_cast<T *>(nullptr))) return failure;
        data = static_cast<T *>(memory);
        for (size_t i = 0; i < Rank; ++i) {
            sizes[i] = tensor_sizes[i];
            strides[i] = tensor_strides[i];
        }
        return ok;
    }

    bool contiguous() const {
        int64_t expected = 1;
        for (size_t i = Rank; i-- > 0;) {
            if (sizes[i] != 1 && strides[i] != expected) return false;
            expected *= sizes[i];
        }
        return true;
    }
};

/** A new contiguous tensor that the caller, the graph, owns; its memory is returned in `view`. */
template <typename T, size_t Rank>
AOTITorchError make_tensor(const std::array<int64_t, Rank> &sizes, AtenTensorHandle *tensor,
                           TensorView<T, Rank> *view) {
    std::array<int64_t, Rank> strides{};
    int64_t stride = 1;
    for (size_t i = Rank; i-- > 0;) {
        strides[i] = stride;
        stride *= sizes[i];
    }
    if (aoti_torch_empty_strided(int64_t{Rank}, sizes.data(), strides.data(),
                                 dtype_number(static_cast<T *>(nullptr)), aoti_torch_device_type_cpu(), 0,
                                 tensor)) {
        return failure;
    }
    return view->open(*tensor);
}

}  // namespace nextn::ops

#define NEXTN_OP extern "C" __attribute__((visibility("default"))) AOTITorchError
