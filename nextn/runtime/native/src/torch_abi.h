#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "status.h"
#include "tensor.h"

namespace nextn::core {

struct AtenTensor;

/**
 * The part of libtorch_cpu's C interface (aoti_torch/c/shim.h) that binding needs. It is declared here and
 * resolved at run time, so that building needs neither torch's headers nor its libraries.
 */
struct TorchApi {
    uint64_t (*abi_version)();
    int32_t (*device_type_cpu)();
    int32_t (*create_tensor_from_blob)(void *data, int64_t ndim, const int64_t *sizes, const int64_t *strides,
                                       int64_t storage_offset, int32_t dtype, int32_t device_type,
                                       int32_t device_index, AtenTensor **tensor);
    int32_t (*delete_tensor_object)(AtenTensor *tensor);

    /** torch's number of each `DType`. */
    std::array<int32_t, num_dtypes> dtypes;

    /** Absent before torch 2.13, and in builds without OpenMP. */
    const char *(*last_exception)();
    int (*get_max_threads)();
    void (*set_num_threads)(int threads);

    /** Loads libtorch_cpu.so from `path`, or where `path` is empty finds it; it is never unloaded. */
    static Result<TorchApi> load(const std::string &path);

    std::string version() const;
    /** Refuses a libtorch other than the one that compiled the graphs: generated code is tied to it. */
    Status check_version(const std::string &expected, const std::string &manifest) const;
    std::string exception_text() const;
};

/** A torch tensor over memory that someone else owns. */
class TensorHandle {
  public:
    TensorHandle(const TorchApi &torch, AtenTensor *tensor) : torch_(torch), tensor_(tensor) {}
    TensorHandle(const TensorHandle &) = delete;
    ~TensorHandle() { torch_.delete_tensor_object(tensor_); }

    AtenTensor *get() const { return tensor_; }

  private:
    const TorchApi &torch_;
    AtenTensor *tensor_;
};

}  // namespace nextn::core
