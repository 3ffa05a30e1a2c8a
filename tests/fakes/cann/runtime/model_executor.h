// What runs an offline model where a test has something that can: the fake itself computes nothing.

#pragma once

#include <acl/acl.h>

#include <cstddef>
#include <cstdint>

extern "C" {
struct fake_cann_buffer {
    void *place;
    uint64_t bytes;
};

/** `path` is the model's file; returns 0, or the error of the run. */
typedef int32_t (*fake_cann_model_executor)(void *user, const char *path, const fake_cann_buffer *inputs,
                                            size_t num_inputs, const fake_cann_buffer *outputs,
                                            size_t num_outputs);

/** Runs every model whose call is sound; null: none is run. */
void fake_cann_set_model_executor(fake_cann_model_executor executor, void *user);
}

namespace fake_cann {

/** Success if there is no executor. */
aclError run_model(const char *path, const aclmdlDataset *inputs, const aclmdlDataset *outputs);

}  // namespace fake_cann
