#include "model_executor.h"

#include <vector>

#include "offline_data.h"

namespace {

// Set while nothing runs.
fake_cann_model_executor chosen = nullptr;
void *chosen_user = nullptr;

std::vector<fake_cann_buffer> buffers_of(const aclmdlDataset *dataset) {
    std::vector<fake_cann_buffer> buffers;
    for (const aclDataBuffer *buffer : fake_cann::dataset_of(dataset)->buffers) {
        const fake_cann::DataBuffer found = fake_cann::data_buffer_of(buffer);
        buffers.push_back({found.place, found.bytes});
    }
    return buffers;
}

}  // namespace

void fake_cann_set_model_executor(fake_cann_model_executor executor, void *user) {
    chosen = executor;
    chosen_user = user;
}

aclError fake_cann::run_model(const char *path, const aclmdlDataset *inputs, const aclmdlDataset *outputs) {
    if (chosen == nullptr) return ACL_SUCCESS;
    const std::vector<fake_cann_buffer> read = buffers_of(inputs);
    const std::vector<fake_cann_buffer> written = buffers_of(outputs);
    return chosen(chosen_user, path, read.data(), read.size(), written.data(), written.size());
}
