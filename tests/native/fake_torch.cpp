// Stands in for libtorch_cpu.so: the few functions of its C interface that libnextn and the fake graphs call.

#include <cstdint>
#include <cstdlib>

struct AtenTensor {
    void *data;
};

namespace {

int64_t live_tensors = 0;
int threads = 7;

}  // namespace

extern "C" {

uint64_t aoti_torch_abi_version() {
    const char *minor = std::getenv("FAKE_TORCH_MINOR");
    return uint64_t{2} << 56 | std::strtoull(minor == nullptr ? "13" : minor, nullptr, 10) << 48;
}

int32_t aoti_torch_device_type_cpu() {
    return 0;
}
int32_t aoti_torch_dtype_uint8() {
    return 0;
}
int32_t aoti_torch_dtype_int8() {
    return 1;
}
int32_t aoti_torch_dtype_int32() {
    return 3;
}
int32_t aoti_torch_dtype_int64() {
    return 4;
}
int32_t aoti_torch_dtype_float16() {
    return 5;
}
int32_t aoti_torch_dtype_float32() {
    return 6;
}
int32_t aoti_torch_dtype_bfloat16() {
    return 15;
}

int32_t aoti_torch_create_tensor_from_blob(void *data, int64_t ndim, const int64_t *sizes,
                                           const int64_t *strides, int64_t, int32_t, int32_t, int32_t,
                                           AtenTensor **tensor) {
    for (int64_t i = 0; i + 1 < ndim; ++i) {
        if (strides[i] != strides[i + 1] * sizes[i + 1]) return 1;
    }
    *tensor = new AtenTensor{data};
    ++live_tensors;
    return 0;
}

int32_t aoti_torch_delete_tensor_object(AtenTensor *tensor) {
    delete tensor;
    --live_tensors;
    return 0;
}

int32_t aoti_torch_get_data_ptr(AtenTensor *tensor, void **data) {
    *data = tensor->data;
    return 0;
}

int omp_get_max_threads() {
    return threads;
}
void omp_set_num_threads(int count) {
    threads = count;
}

int64_t fake_torch_live_tensors() {
    return live_tensors;
}
int fake_torch_threads() {
    return threads;
}

}  // extern "C"
