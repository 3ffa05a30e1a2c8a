// ge::Session: graphs are kept by id, compiled into a summary of their outputs, and "run" into the log.
//
// The session class of the wheel's headers is older than the one its libraries call, so it is declared here.

#include <graph/ascend_string.h>
#include <graph/tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "capture.h"
#include "ge_graph.h"
#include "log.h"
#include "model_def.h"

namespace ge {

using Status = uint32_t;
using Options = std::map<AscendString, AscendString>;
class Allocator;

class CompiledGraphSummary {
  public:
    bool IsStatic() const;
    Status GetConstMemorySize(size_t &bytes) const;
    Status GetFeatureMemorySize(size_t &bytes) const;
    Status GetFixedFeatureMemorySize(size_t &bytes) const;
    Status GetFeatureMemoryBaseRefreshable(bool &refreshable) const;
    Status GetOutputShapes(std::vector<Shape> &shapes) const;
    Status GetOutputDtypes(std::vector<DataType> &dtypes) const;

    /** A pointer, like all that GE's classes hold: the wheel knows their size. */
    std::shared_ptr<fake_cann::ModelDef> model;
};

class Session {
  public:
    explicit Session(const Options &options);
    ~Session();
    Status AddGraph(uint32_t id, const Graph &graph, const Options &options);
    Status RemoveGraph(uint32_t id);
    Status CompileGraph(uint32_t id);
    std::shared_ptr<CompiledGraphSummary> GetCompiledGraphSummary(uint32_t id);
    Status RunGraph(uint32_t id, const std::vector<Tensor> &inputs, std::vector<Tensor> &outputs);
    Status RunGraphWithStreamAsync(uint32_t id, void *stream, const std::vector<Tensor> &inputs,
                                   std::vector<Tensor> &outputs);
    Status SetGraphConstMemoryBase(uint32_t id, const void *memory, size_t bytes);
    Status SetGraphFixedFeatureMemoryBase(uint32_t id, const void *memory, size_t bytes);
    Status UpdateGraphFeatureMemoryBase(uint32_t id, const void *memory, size_t bytes);
    Status UpdateGraphRefreshableFeatureMemoryBase(uint32_t id, const void *memory, size_t bytes);
    Status RegisterExternalAllocator(const void *stream, std::shared_ptr<Allocator> allocator) const;

    uint64_t id_ = 0;
};

namespace {

constexpr Status success = 0;
constexpr Status failure = 0xFFFFFFFF;
/** Every memory size of a compiled graph; torchair allocates that much. */
constexpr size_t memory_bytes = 512;

struct AddedGraphs {
    std::mutex mutex;
    std::map<uint32_t, std::shared_ptr<fake_cann::ModelDef>> by_id;
};

AddedGraphs &added() {
    static auto &graphs = *new AddedGraphs;
    return graphs;
}

std::shared_ptr<fake_cann::ModelDef> find(uint32_t id) {
    const std::lock_guard<std::mutex> lock(added().mutex);
    const auto found = added().by_id.find(id);
    return found == added().by_id.end() ? nullptr : found->second;
}

std::string text_of(const Options &options) {
    std::string text;
    for (const auto &[name, value] : options) {
        text += std::string(text.empty() ? "" : " ") + name.GetString() + "=" + value.GetString();
    }
    return text;
}

Status note_graph(const char *step, uint32_t id, const std::string &detail = "") {
    const auto model = find(id);
    fake_cann::Entry entry{"graph", step, detail};
    entry.tasks = model == nullptr ? 0 : model->num_ops;
    fake_cann::note(entry);
    return model == nullptr ? failure : success;
}

}  // namespace

bool CompiledGraphSummary::IsStatic() const {
    return true;
}

Status CompiledGraphSummary::GetConstMemorySize(size_t &bytes) const {
    bytes = memory_bytes;
    return success;
}

Status CompiledGraphSummary::GetFeatureMemorySize(size_t &bytes) const {
    bytes = memory_bytes;
    return success;
}

Status CompiledGraphSummary::GetFixedFeatureMemorySize(size_t &bytes) const {
    bytes = memory_bytes;
    return success;
}

Status CompiledGraphSummary::GetFeatureMemoryBaseRefreshable(bool &refreshable) const {
    refreshable = true;
    return success;
}

Status CompiledGraphSummary::GetOutputShapes(std::vector<Shape> &shapes) const {
    for (const auto &tensor : model->outputs) shapes.emplace_back(tensor.dims);
    return success;
}

Status CompiledGraphSummary::GetOutputDtypes(std::vector<DataType> &dtypes) const {
    for (const auto &tensor : model->outputs) dtypes.push_back(static_cast<DataType>(tensor.dtype));
    return success;
}

Status GEInitialize(const Options &options) {
    fake_cann::note({"graph", "initialize", text_of(options)});
    return success;
}

Status GEFinalize() {
    return success;
}

AscendString GEGetWarningMsgV2() {
    return AscendString("");
}

Session::Session(const Options &) {}

Session::~Session() {}

Status Session::AddGraph(uint32_t id, const Graph &graph, const Options &options) {
    auto model = std::make_shared<fake_cann::ModelDef>(fake_cann::read_model_def(fake_cann::model_of(graph)));
    {
        const std::lock_guard<std::mutex> lock(added().mutex);
        added().by_id[id] = std::move(model);
    }
    return note_graph("add", id, text_of(options));
}

Status Session::RemoveGraph(uint32_t id) {
    const std::lock_guard<std::mutex> lock(added().mutex);
    return added().by_id.erase(id) == 1 ? success : failure;
}

Status Session::CompileGraph(uint32_t id) {
    return note_graph("compile", id);
}

std::shared_ptr<CompiledGraphSummary> Session::GetCompiledGraphSummary(uint32_t id) {
    const auto model = find(id);
    if (model == nullptr) return nullptr;
    auto summary = std::make_shared<CompiledGraphSummary>();
    summary->model = model;
    return summary;
}

Status Session::RunGraph(uint32_t id, const std::vector<Tensor> &, std::vector<Tensor> &) {
    return note_graph("run", id);
}

Status Session::RunGraphWithStreamAsync(uint32_t id, void *stream, const std::vector<Tensor> &,
                                        std::vector<Tensor> &) {
    const auto model = find(id);
    if (model == nullptr) return failure;
    fake_cann::Entry entry{"replay", "GE graph"};
    entry.tasks = model->num_ops;
    fake_cann::submit(stream, entry);
    return success;
}

Status Session::SetGraphConstMemoryBase(uint32_t, const void *, size_t) {
    return success;
}

Status Session::SetGraphFixedFeatureMemoryBase(uint32_t, const void *, size_t) {
    return success;
}

Status Session::UpdateGraphFeatureMemoryBase(uint32_t, const void *, size_t) {
    return success;
}

Status Session::UpdateGraphRefreshableFeatureMemoryBase(uint32_t, const void *, size_t) {
    return success;
}

Status Session::RegisterExternalAllocator(const void *, std::shared_ptr<Allocator>) const {
    return success;
}

}  // namespace ge
