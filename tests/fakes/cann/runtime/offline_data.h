// The host-side objects around an offline model: data buffers, datasets, descriptions.

#pragma once

#include <acl/acl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model_def.h"

namespace fake_cann {

struct DataBuffer {
    void *place = nullptr;
    size_t bytes = 0;
};

struct Dataset {
    std::vector<aclDataBuffer *> buffers;
};

/** Of a loaded model by its id, or of a model that was only read. */
struct Description {
    uint32_t model = 0;
    std::shared_ptr<const ModelDef> read;
};

/** What a live dataset holds, or null; a buffer that was destroyed in the meantime counts as empty. */
const Dataset *dataset_of(const aclmdlDataset *dataset);
DataBuffer data_buffer_of(const aclDataBuffer *buffer);

}  // namespace fake_cann
