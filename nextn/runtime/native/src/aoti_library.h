#pragma once

#include <cstdint>
#include <string>

#include "status.h"

namespace nextn::core {

struct AtenTensor;
struct AotiContainer;

struct AotiConstant {
    const char *name;
    AtenTensor *tensor;
};

/** The C interface every AOTInductor shared object exports (aoti_runtime/interface.h). Calls return 0 if
 * well. */
struct AotiApi {
    int32_t (*create)(AotiContainer **container, size_t num_models, const char *device,
                      const char *cubin_dir);
    int32_t (*destroy)(AotiContainer *container);
    int32_t (*run)(AotiContainer *container, AtenTensor **inputs, size_t num_inputs, AtenTensor **outputs,
                   size_t num_outputs, void *stream, void *proxy_executor);
    int32_t (*num_inputs)(AotiContainer *container, size_t *count);
    int32_t (*num_outputs)(AotiContainer *container, size_t *count);
    int32_t (*num_constants)(AotiContainer *container, size_t *count);
    int32_t (*constant_name)(AotiContainer *container, size_t index, const char **name);
    int32_t (*constant_fqn)(AotiContainer *container, size_t index, const char **fqn);
    int32_t (*constant_folded)(AotiContainer *container, size_t index, bool *folded);
    int32_t (*constant_dtype)(AotiContainer *container, size_t index, int32_t *dtype);
    int32_t (*constant_bytes)(AotiContainer *container, size_t index, size_t *bytes);
    int32_t (*bind)(AotiContainer *container, const AotiConstant *constants, size_t count, bool inactive,
                    bool full);
    int32_t (*last_error)(const char **text);
};

/** A compiled graph's shared object, loaded. */
class AotiLibrary {
  public:
    static Result<AotiLibrary> open(const std::string &path);

    AotiLibrary(AotiLibrary &&other) noexcept;
    AotiLibrary(const AotiLibrary &) = delete;
    AotiLibrary &operator=(const AotiLibrary &) = delete;
    ~AotiLibrary();

    const AotiApi &api() const { return api_; }
    const std::string &path() const { return path_; }
    /** What the last failed call on this thread left as its reason. */
    std::string last_error() const;

  private:
    AotiLibrary() = default;
    Status resolve();

    std::string path_;
    void *handle_ = nullptr;
    AotiApi api_{};
};

}  // namespace nextn::core
