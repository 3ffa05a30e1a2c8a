// Loaded offline models by id. The file is what ge::Graph::SaveToFile wrote: a serialized ModelDef.

#pragma once

#include <acl/acl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model_def.h"

namespace fake_cann {

struct OfflineModel {
    std::string path;
    ModelDef definition;
    /** The one it was loaded in, outside of which it cannot be used. */
    aclrtContext context = nullptr;
    /** Device memory that the caller lent for as long as the model is loaded, and how much is needed. */
    void *work = nullptr;
    size_t work_bytes = 0;
    void *weights = nullptr;
    size_t weight_bytes = 0;
    /** Allocated by the load itself; freed with the model. */
    std::vector<void *> owned;
};

/** What a file says, or the error for a file that is no model. */
aclError read_model_file(const char *path, ModelDef *definition);

/** Null if no model with this id is loaded. */
std::shared_ptr<const OfflineModel> offline_model(uint32_t id);

}  // namespace fake_cann
