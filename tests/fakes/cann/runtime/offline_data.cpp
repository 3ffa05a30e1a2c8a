#include "offline_data.h"

#include "faults.h"
#include "handles.h"

using namespace fake_cann;

namespace {

Dataset *find(const aclmdlDataset *dataset) {
    return handles<Dataset>().find(dataset);
}

DataBuffer *find(const aclDataBuffer *buffer) {
    return handles<DataBuffer>().find(buffer);
}

aclError done_if(bool found) {
    return found ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

}  // namespace

const Dataset *fake_cann::dataset_of(const aclmdlDataset *dataset) {
    return find(dataset);
}

DataBuffer fake_cann::data_buffer_of(const aclDataBuffer *buffer) {
    const DataBuffer *found = find(buffer);
    return found == nullptr ? DataBuffer{} : *found;
}

/** Data buffers, datasets and descriptions together. */
extern "C" uint64_t fake_cann_live_model_objects() {
    return handles<DataBuffer>().size() + handles<Dataset>().size() + handles<Description>().size();
}

aclDataBuffer *aclCreateDataBuffer(void *place, size_t bytes) {
    if (is_to_fail(__func__)) return nullptr;
    return reinterpret_cast<aclDataBuffer *>(handles<DataBuffer>().make({place, bytes}));
}

aclError aclDestroyDataBuffer(const aclDataBuffer *buffer) {
    return done_if(handles<DataBuffer>().drop(buffer));
}

aclError aclUpdateDataBuffer(aclDataBuffer *buffer, void *place, size_t bytes) {
    DataBuffer *found = find(buffer);
    if (found != nullptr) *found = {place, bytes};
    return done_if(found != nullptr);
}

void *aclGetDataBufferAddr(const aclDataBuffer *buffer) {
    return data_buffer_of(buffer).place;
}

size_t aclGetDataBufferSizeV2(const aclDataBuffer *buffer) {
    return data_buffer_of(buffer).bytes;
}

uint32_t aclGetDataBufferSize(const aclDataBuffer *buffer) {
    return static_cast<uint32_t>(aclGetDataBufferSizeV2(buffer));
}

aclmdlDataset *aclmdlCreateDataset() {
    if (is_to_fail(__func__)) return nullptr;
    return reinterpret_cast<aclmdlDataset *>(handles<Dataset>().make({}));
}

// As in CANN: the buffers in it stay, whoever created them destroys them.
aclError aclmdlDestroyDataset(const aclmdlDataset *dataset) {
    return done_if(handles<Dataset>().drop(dataset));
}

aclError aclmdlAddDatasetBuffer(aclmdlDataset *dataset, aclDataBuffer *buffer) {
    if (is_to_fail(__func__)) return injected_fault;
    Dataset *found = find(dataset);
    if (found == nullptr || find(buffer) == nullptr) return ACL_ERROR_INVALID_PARAM;
    found->buffers.push_back(buffer);
    return ACL_SUCCESS;
}

size_t aclmdlGetDatasetNumBuffers(const aclmdlDataset *dataset) {
    const Dataset *found = find(dataset);
    return found == nullptr ? 0 : found->buffers.size();
}

aclDataBuffer *aclmdlGetDatasetBuffer(const aclmdlDataset *dataset, size_t index) {
    const Dataset *found = find(dataset);
    return found == nullptr || index >= found->buffers.size() ? nullptr : found->buffers[index];
}

aclmdlDesc *aclmdlCreateDesc() {
    if (is_to_fail(__func__)) return nullptr;
    return reinterpret_cast<aclmdlDesc *>(handles<Description>().make({}));
}

aclError aclmdlDestroyDesc(aclmdlDesc *description) {
    return done_if(handles<Description>().drop(description));
}
