// What a description tells about the inputs and outputs of a loaded model.

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "faults.h"
#include "handles.h"
#include "offline_data.h"
#include "offline_model.h"

using namespace fake_cann;

namespace {

using Tensors = std::vector<ModelTensor> ModelDef::*;

/** Null if there is no such description, or its model was unloaded: those outlive no unload. */
const ModelDef *definition_of(const aclmdlDesc *description) {
    const Description *found = handles<Description>().find(description);
    if (found == nullptr) return nullptr;
    if (found->read != nullptr) return found->read.get();
    const auto model = offline_model(found->model);
    return model == nullptr ? nullptr : &model->definition;
}

const ModelTensor *tensor_of(const aclmdlDesc *description, Tensors side, size_t index) {
    const ModelDef *definition = definition_of(description);
    if (definition == nullptr) return nullptr;
    const std::vector<ModelTensor> &tensors = definition->*side;
    return index < tensors.size() ? &tensors[index] : nullptr;
}

size_t count_of(const aclmdlDesc *description, Tensors side) {
    const ModelDef *definition = definition_of(description);
    return definition == nullptr ? 0 : (definition->*side).size();
}

size_t bytes_of(const ModelTensor *tensor) {
    return tensor == nullptr ? 0 : tensor->bytes();
}

const char *name_of(const ModelTensor *tensor) {
    return tensor == nullptr ? "" : tensor->name.c_str();
}

aclDataType dtype_of(const ModelTensor *tensor) {
    // aclDataType has the numbers of ge::DataType.
    return tensor == nullptr ? ACL_DT_UNDEFINED : static_cast<aclDataType>(tensor->dtype);
}

aclError fill_dims(const ModelTensor *tensor, aclmdlIODims *dims) {
    if (tensor == nullptr || tensor->dims.size() > ACL_MAX_DIM_CNT) return ACL_ERROR_INVALID_PARAM;
    *dims = {};
    std::strncpy(dims->name, tensor->name.c_str(), sizeof dims->name - 1);
    dims->dimCount = tensor->dims.size();
    std::copy(tensor->dims.begin(), tensor->dims.end(), dims->dims);
    return ACL_SUCCESS;
}

aclError find_name(const aclmdlDesc *description, Tensors side, const char *name, size_t *index) {
    for (size_t i = 0; i < count_of(description, side); ++i) {
        if (tensor_of(description, side, i)->name != name) continue;
        *index = i;
        return ACL_SUCCESS;
    }
    return ACL_ERROR_INVALID_PARAM;
}

}  // namespace

aclError aclmdlGetDesc(aclmdlDesc *description, uint32_t id) {
    if (is_to_fail(__func__)) return injected_fault;
    Description *found = handles<Description>().find(description);
    if (found == nullptr) return ACL_ERROR_INVALID_PARAM;
    if (offline_model(id) == nullptr) return ACL_ERROR_GE_EXEC_MODEL_ID_INVALID;
    *found = {id, nullptr};
    return ACL_SUCCESS;
}

aclError aclmdlGetDescFromFile(aclmdlDesc *description, const char *path) {
    Description *found = handles<Description>().find(description);
    if (found == nullptr) return ACL_ERROR_INVALID_PARAM;
    ModelDef definition;
    const aclError error = read_model_file(path, &definition);
    if (error == ACL_SUCCESS) *found = {0, std::make_shared<const ModelDef>(std::move(definition))};
    return error;
}

size_t aclmdlGetNumInputs(aclmdlDesc *description) {
    return count_of(description, &ModelDef::inputs);
}

size_t aclmdlGetNumOutputs(aclmdlDesc *description) {
    return count_of(description, &ModelDef::outputs);
}

size_t aclmdlGetInputSizeByIndex(aclmdlDesc *description, size_t index) {
    return bytes_of(tensor_of(description, &ModelDef::inputs, index));
}

size_t aclmdlGetOutputSizeByIndex(aclmdlDesc *description, size_t index) {
    return bytes_of(tensor_of(description, &ModelDef::outputs, index));
}

const char *aclmdlGetInputNameByIndex(const aclmdlDesc *description, size_t index) {
    return name_of(tensor_of(description, &ModelDef::inputs, index));
}

const char *aclmdlGetOutputNameByIndex(const aclmdlDesc *description, size_t index) {
    return name_of(tensor_of(description, &ModelDef::outputs, index));
}

aclDataType aclmdlGetInputDataType(const aclmdlDesc *description, size_t index) {
    return dtype_of(tensor_of(description, &ModelDef::inputs, index));
}

aclDataType aclmdlGetOutputDataType(const aclmdlDesc *description, size_t index) {
    return dtype_of(tensor_of(description, &ModelDef::outputs, index));
}

aclFormat aclmdlGetInputFormat(const aclmdlDesc *, size_t) {
    return ACL_FORMAT_ND;
}

aclFormat aclmdlGetOutputFormat(const aclmdlDesc *, size_t) {
    return ACL_FORMAT_ND;
}

aclError aclmdlGetInputDims(const aclmdlDesc *description, size_t index, aclmdlIODims *dims) {
    return fill_dims(tensor_of(description, &ModelDef::inputs, index), dims);
}

aclError aclmdlGetOutputDims(const aclmdlDesc *description, size_t index, aclmdlIODims *dims) {
    return fill_dims(tensor_of(description, &ModelDef::outputs, index), dims);
}

aclError aclmdlGetInputIndexByName(const aclmdlDesc *description, const char *name, size_t *index) {
    return find_name(description, &ModelDef::inputs, name, index);
}

aclError aclmdlGetOutputIndexByName(const aclmdlDesc *description, const char *name, size_t *index) {
    return find_name(description, &ModelDef::outputs, name, index);
}
