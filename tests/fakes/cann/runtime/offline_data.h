// The host-side objects around an offline model: data buffers, datasets, descriptions.

#pragma once

#include <acl/acl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake_cann {

struct DataBuffer {
    void *place = nullptr;
    size_t bytes = 0;
};

struct Dataset {
    std::vector<aclDataBuffer *> buffers;
};

struct Description {
    uint32_t model = 0;
};

/** What a live dataset holds, or null; a buffer that was destroyed in the meantime counts as empty. */
const Dataset *dataset_of(const aclmdlDataset *dataset);
DataBuffer data_buffer_of(const aclDataBuffer *buffer);

}  // namespace fake_cann
