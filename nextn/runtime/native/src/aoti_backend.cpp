#include "aoti_backend.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace nextn::core {
namespace {

/** Graphs are compiled for one thread, but kernels they call in libtorch would take every core there is. */
class SingleThread {
  public:
    explicit SingleThread(const TorchApi &torch) : torch_(torch) {
        if (torch_.set_num_threads == nullptr || torch_.get_max_threads == nullptr) return;
        previous_ = torch_.get_max_threads();
        torch_.set_num_threads(1);
    }
    SingleThread(const SingleThread &) = delete;
    ~SingleThread() {
        if (previous_ > 0) torch_.set_num_threads(previous_);
    }

  private:
    const TorchApi &torch_;
    int previous_ = 0;
};

/** "state.control" is exported from submodule `state`; the manifest calls it "control". */
std::string manifest_name(const std::string &fqn) {
    return fqn.substr(fqn.find('.') + 1);
}

/** Generated code records the size a constant would have inside the library, padded to 64 bytes. */
size_t recorded_bytes(const TensorInfo &tensor) {
    constexpr size_t padding = 64;
    return (static_cast<size_t>(tensor.bytes) + padding - 1) / padding * padding;
}

const TensorInfo *find_tensor(const GraphInfo &info, const std::string &name) {
    const auto place = std::find_if(info.tensors.begin(), info.tensors.end(),
                                    [&](const TensorInfo &tensor) { return tensor.name == name; });
    return place == info.tensors.end() ? nullptr : &*place;
}

}  // namespace

/** One container made from one shared object. */
class AotiGraph : public Graph {
  public:
    static Result<std::unique_ptr<AotiGraph>> open(const GraphInfo &info, const std::string &path,
                                                   const TorchApi &torch);
    ~AotiGraph() override {
        if (container_ != nullptr) library_.api().destroy(container_);
    }

    /** Name inside the container and manifest name of every constant the graph reads. */
    const std::vector<std::pair<std::string, std::string>> &constants() const { return constants_; }

    Status bind(const std::vector<AotiConstant> &constants) {
        if (library_.api().bind(container_, constants.data(), constants.size(), false, true) == 0) return {};
        return failure("cannot bind tensors");
    }
    Status run() {
        if (library_.api().run(container_, nullptr, 0, nullptr, 0, nullptr, nullptr) == 0) return {};
        return failure("graph failed");
    }
    Status failure(const char *message) const {
        return runtime_error(message).file(library_.path()).found(library_.last_error());
    }

  private:
    explicit AotiGraph(AotiLibrary library) : library_(std::move(library)) {}

    Status check_counts(size_t *num_constants) const;
    Status read_constant(size_t index, const GraphInfo &info, const TorchApi &torch);
    Status check_nothing_folded(const GraphInfo &info) const;
    Status check_constant(size_t index, const TensorInfo &expected, const TorchApi &torch) const;

    AotiLibrary library_;
    AotiContainer *container_ = nullptr;
    std::vector<std::pair<std::string, std::string>> constants_;
};

Result<std::unique_ptr<AotiGraph>> AotiGraph::open(const GraphInfo &info, const std::string &path,
                                                   const TorchApi &torch) {
    Result<AotiLibrary> library = AotiLibrary::open(path);
    NEXTN_RETURN_IF_ERROR(library);
    std::unique_ptr<AotiGraph> graph(new AotiGraph(std::move(*library)));
    if (graph->library_.api().create(&graph->container_, 1, "cpu", nullptr) != 0) {
        return graph->failure("cannot create graph");
    }
    size_t num_constants = 0;
    NEXTN_RETURN_IF_ERROR(graph->check_counts(&num_constants));
    for (size_t i = 0; i < num_constants; ++i) {
        NEXTN_RETURN_IF_ERROR(graph->read_constant(i, info, torch));
    }
    NEXTN_RETURN_IF_ERROR(graph->check_nothing_folded(info));
    return graph;
}

Status AotiGraph::check_counts(size_t *num_constants) const {
    const AotiApi &api = library_.api();
    size_t inputs = 0, outputs = 0;
    if (api.num_inputs(container_, &inputs) != 0 || api.num_outputs(container_, &outputs) != 0 ||
        api.num_constants(container_, num_constants) != 0) {
        return failure("cannot inspect graph");
    }
    if (inputs == 0 && outputs == 0) return {};
    return artifact_error("not a graph of state alone")
        .file(library_.path())
        .expected("0 inputs, 0 outputs")
        .found(concat(inputs, " inputs, ", outputs, " outputs"));
}

Status AotiGraph::read_constant(size_t index, const GraphInfo &info, const TorchApi &torch) {
    const AotiApi &api = library_.api();
    bool folded = false;
    const char *name = nullptr;
    const char *fqn = nullptr;
    if (api.constant_folded(container_, index, &folded) != 0) return failure("cannot inspect graph");
    if (folded) return {};
    if (api.constant_name(container_, index, &name) != 0 || api.constant_fqn(container_, index, &fqn) != 0 ||
        name == nullptr || fqn == nullptr) {
        return failure("cannot inspect graph");
    }
    const TensorInfo *expected = find_tensor(info, manifest_name(fqn));
    if (expected == nullptr) {
        return artifact_error("graph needs a tensor the manifest does not give it")
            .file(library_.path())
            .key(fqn);
    }
    NEXTN_RETURN_IF_ERROR(check_constant(index, *expected, torch));
    constants_.emplace_back(name, expected->name);
    return {};
}

/** Inductor takes small buffers that a graph only reads for constants, unless it is told not to. */
Status AotiGraph::check_nothing_folded(const GraphInfo &info) const {
    for (const TensorInfo &tensor : info.tensors) {
        const bool read = std::any_of(constants_.begin(), constants_.end(),
                                      [&](const auto &constant) { return constant.second == tensor.name; });
        if (read || tensor.kind == TensorKind::weight) continue;
        return artifact_error("graph does not read a required buffer").file(library_.path()).key(tensor.name);
    }
    return {};
}

/** AOTInductor itself checks neither, and crashes or reads garbage. */
Status AotiGraph::check_constant(size_t index, const TensorInfo &expected, const TorchApi &torch) const {
    const AotiApi &api = library_.api();
    int32_t dtype = 0;
    size_t bytes = 0;
    if (api.constant_dtype(container_, index, &dtype) != 0 ||
        api.constant_bytes(container_, index, &bytes) != 0) {
        return failure("cannot inspect graph");
    }
    const bool same_dtype = dtype == torch.dtypes[static_cast<size_t>(expected.dtype)];
    if (same_dtype && bytes == recorded_bytes(expected)) return {};
    return artifact_error("graph was compiled for another tensor")
        .file(library_.path())
        .key(expected.name)
        .expected(concat(dtype_name(expected.dtype), " of ", recorded_bytes(expected), " bytes"))
        .found(concat(same_dtype ? "the same dtype" : "another dtype", " of ", bytes, " bytes"));
}

AotiBackend::AotiBackend(const TorchApi &torch) : torch_(torch) {}

AotiBackend::~AotiBackend() = default;

Status AotiBackend::attach(const TensorTable &tensors) {
    tensors_ = &tensors;
    return {};
}

Result<std::vector<Graph *>> AotiBackend::load(const std::vector<GraphFile> &files) {
    std::vector<Graph *> loaded;
    for (const GraphFile &file : files) {
        Result<std::unique_ptr<AotiGraph>> graph = AotiGraph::open(*file.info, file.path, torch_);
        NEXTN_RETURN_IF_ERROR(graph);
        graphs_.push_back(std::move(*graph));
        NEXTN_RETURN_IF_ERROR(bind(graphs_.back().get()));
        loaded.push_back(graphs_.back().get());
    }
    return loaded;
}

Status AotiBackend::bind(AotiGraph *graph) {
    std::vector<AotiConstant> constants;
    for (const auto &[inner_name, name] : graph->constants()) {
        const auto place = tensors_->find(name);
        if (place == tensors_->end()) return runtime_error("no memory for a tensor").key(name);
        const Result<AtenTensor *> handle = tensor_handle(name, place->second);
        NEXTN_RETURN_IF_ERROR(handle);
        constants.push_back({inner_name.c_str(), *handle});
    }
    return graph->bind(constants);
}

Result<AtenTensor *> AotiBackend::tensor_handle(const std::string &name, const BoundTensor &tensor) {
    const auto place = handles_.find(name);
    if (place != handles_.end()) return place->second.get();
    Shape strides(tensor.shape.size());
    int64_t stride = 1;
    for (size_t i = strides.size(); i-- > 0;) {
        strides[i] = stride;
        stride *= std::max<int64_t>(tensor.shape[i], 1);
    }
    AtenTensor *handle = nullptr;
    const int32_t failed = torch_.create_tensor_from_blob(
        tensor.data, static_cast<int64_t>(tensor.shape.size()), tensor.shape.data(), strides.data(), 0,
        torch_.dtypes[static_cast<size_t>(tensor.dtype)], torch_.device_type_cpu(), 0, &handle);
    if (failed != 0) return runtime_error("cannot wrap tensor").key(name).found(torch_.exception_text());
    return handles_.try_emplace(name, torch_, handle).first->second.get();
}

Status AotiBackend::replay(Graph *graph) {
    const SingleThread guard(torch_);
    try {
        return static_cast<AotiGraph &>(*graph).run();
    } catch (const std::exception &error) {
        return runtime_error("graph failed").found(error.what());
    }
}

}  // namespace nextn::core
