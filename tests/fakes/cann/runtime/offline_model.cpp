#include "offline_model.h"

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "capture.h"
#include "contexts.h"
#include "faults.h"
#include "memory.h"

namespace fake_cann {
namespace {

struct LoadedModels {
    std::mutex mutex;
    std::map<uint32_t, std::shared_ptr<const OfflineModel>> by_id;
    uint32_t next_id = 1;
};

LoadedModels &loaded() {
    static auto &models = *new LoadedModels;
    return models;
}

/**
 * Reads a model and sets the sizes it needs. They are made up, but differ between models, so that a host
 * which shares one work buffer has to take the largest.
 */
aclError read_model(const char *path, OfflineModel *model) {
    constexpr size_t unit = 512;
    const aclError error = read_model_file(path, &model->definition);
    if (error != ACL_SUCCESS) return error;
    model->path = path;
    model->context = current_context();
    model->work_bytes = (model->definition.num_ops + 1) * unit;
    model->weight_bytes = (model->definition.file_bytes + unit - 1) / unit * unit;
    return ACL_SUCCESS;
}

uint32_t keep(OfflineModel model) {
    Entry entry{"model_load", model.path};
    entry.bytes = model.work_bytes + model.weight_bytes;
    entry.tasks = model.definition.num_ops;
    entry.captured = is_capture_open();
    note(entry);
    const std::lock_guard<std::mutex> lock(loaded().mutex);
    const uint32_t id = loaded().next_id++;
    loaded().by_id[id] = std::make_shared<const OfflineModel>(std::move(model));
    return id;
}

aclError allocate_owned(OfflineModel *model, size_t bytes, void **place) {
    const aclError error = aclrtMalloc(place, bytes, ACL_MEM_MALLOC_HUGE_FIRST);
    if (error == ACL_SUCCESS) model->owned.push_back(*place);
    return error;
}

}  // namespace

aclError read_model_file(const char *path, ModelDef *definition) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID;
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    *definition = read_model_def(bytes);
    definition->file_bytes = bytes.size();
    return definition->has_outputs ? ACL_SUCCESS : ACL_ERROR_GE_PARAM_INVALID;
}

std::shared_ptr<const OfflineModel> offline_model(uint32_t id) {
    const std::lock_guard<std::mutex> lock(loaded().mutex);
    const auto found = loaded().by_id.find(id);
    return found == loaded().by_id.end() ? nullptr : found->second;
}

}  // namespace fake_cann

using namespace fake_cann;

extern "C" uint64_t fake_cann_live_models() {
    const std::lock_guard<std::mutex> lock(loaded().mutex);
    return loaded().by_id.size();
}

aclError aclmdlQuerySize(const char *path, size_t *work_bytes, size_t *weight_bytes) {
    if (is_to_fail(__func__)) return injected_fault;
    OfflineModel model;
    const aclError error = read_model(path, &model);
    *work_bytes = model.work_bytes;
    *weight_bytes = model.weight_bytes;
    return error;
}

aclError aclmdlLoadFromFileWithMem(const char *path, uint32_t *id, void *work, size_t work_bytes,
                                   void *weights, size_t weight_bytes) {
    if (is_to_fail(__func__)) return injected_fault;
    if (has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    OfflineModel model;
    const aclError error = read_model(path, &model);
    if (error != ACL_SUCCESS) return error;
    if (work_bytes < model.work_bytes || weight_bytes < model.weight_bytes) {
        return ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID;
    }
    model.work = work;
    model.weights = weights;
    if (!device_memory().holds(work, work_bytes) || !device_memory().holds(weights, weight_bytes)) {
        return ACL_ERROR_GE_EXEC_MODEL_ADDR_INVALID;
    }
    *id = keep(std::move(model));
    return ACL_SUCCESS;
}

aclError aclmdlLoadFromFile(const char *path, uint32_t *id) {
    if (has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    OfflineModel model;
    aclError error = read_model(path, &model);
    if (error == ACL_SUCCESS) error = allocate_owned(&model, model.work_bytes, &model.work);
    if (error == ACL_SUCCESS) error = allocate_owned(&model, model.weight_bytes, &model.weights);
    if (error == ACL_SUCCESS) {
        *id = keep(std::move(model));
    } else {
        for (void *place : model.owned) aclrtFree(place);
    }
    return error;
}

aclError aclmdlUnload(uint32_t id) {
    const std::shared_ptr<const OfflineModel> model = offline_model(id);
    if (model == nullptr) return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    if (model->context != current_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    {
        const std::lock_guard<std::mutex> lock(loaded().mutex);
        loaded().by_id.erase(id);
    }
    for (void *place : model->owned) aclrtFree(place);
    note({"model_unload", model->path});
    return ACL_SUCCESS;
}
