// Runs of an offline model: everything that can be wrong about the call is checked, and nothing is computed
// but by an executor that a test has set.

#include "capture.h"
#include "contexts.h"
#include "faults.h"
#include "memory.h"
#include "model_executor.h"
#include "offline_data.h"
#include "offline_model.h"

using namespace fake_cann;

namespace {

// Which code CANN gives for which fault is taken from the names in its headers, not from a run of CANN.

/** Each buffer must be at least as large as its tensor, and lie in one live device allocation. */
aclError check_buffers(const Dataset &dataset, const std::vector<ModelTensor> &tensors, uint64_t *total) {
    for (size_t i = 0; i < tensors.size(); ++i) {
        const DataBuffer buffer = data_buffer_of(dataset.buffers[i]);
        if (buffer.place == nullptr) return ACL_ERROR_GE_EXEC_MODEL_ADDR_INVALID;
        if (buffer.bytes < tensors[i].bytes()) return ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID;
        if (!device_memory().holds(buffer.place, buffer.bytes)) return ACL_ERROR_GE_EXEC_MODEL_ADDR_INVALID;
        *total += tensors[i].bytes();
    }
    return ACL_SUCCESS;
}

aclError check_call(const OfflineModel &model, const aclmdlDataset *input, const aclmdlDataset *output,
                    uint64_t *total) {
    const Dataset *inputs = dataset_of(input);
    const Dataset *outputs = dataset_of(output);
    if (inputs == nullptr || outputs == nullptr) return ACL_ERROR_INVALID_PARAM;
    if (inputs->buffers.size() != model.definition.inputs.size()) return ACL_ERROR_MODEL_INPUT_NOT_MATCH;
    if (outputs->buffers.size() != model.definition.outputs.size()) return ACL_ERROR_MODEL_OUTPUT_NOT_MATCH;
    // The memory lent at load must not have been freed since.
    if (!device_memory().holds(model.work, model.work_bytes) ||
        !device_memory().holds(model.weights, model.weight_bytes)) {
        return ACL_ERROR_GE_EXEC_MODEL_ADDR_INVALID;
    }
    const aclError error = check_buffers(*inputs, model.definition.inputs, total);
    return error != ACL_SUCCESS ? error : check_buffers(*outputs, model.definition.outputs, total);
}

/** Fills the entry of a call, with the error that the call deserves. */
aclError examine(uint32_t id, const aclmdlDataset *input, const aclmdlDataset *output, Entry *entry) {
    const std::shared_ptr<const OfflineModel> model = offline_model(id);
    if (model == nullptr) return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    if (model->context != current_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    entry->name = model->path;
    entry->tasks = model->definition.num_ops;
    return check_call(*model, input, output, &entry->bytes);
}

}  // namespace

aclError aclmdlExecuteAsync(uint32_t id, const aclmdlDataset *input, aclmdlDataset *output,
                            aclrtStream stream) {
    if (is_to_fail(__func__)) return injected_fault;
    Entry entry{"model_execute"};
    entry.error = examine(id, input, output, &entry);
    if (entry.error != ACL_SUCCESS) return submit(stream, entry);
    return submit(stream, entry,
                  [path = entry.name, input, output] { return run_model(path.c_str(), input, output); });
}

aclError aclmdlExecute(uint32_t id, const aclmdlDataset *input, aclmdlDataset *output) {
    return wait_for_device(nullptr, {"model_execute"}, [&](Entry *entry) {
        const aclError error = examine(id, input, output, entry);
        return error == ACL_SUCCESS ? run_model(entry->name.c_str(), input, output) : error;
    });
}
