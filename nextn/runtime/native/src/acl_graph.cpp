#include "acl_graph.h"

#include <algorithm>
#include <cstring>

#include "blocks.h"

namespace nextn::core {
namespace {

/**
 * Whether an input that should be `expected` is certainly another one: it has the very name of another
 * tensor. Compilers add to names, so that a name of no tensor says nothing, nor does one that contains the
 * expected one.
 */
bool is_another_input(const char *found, const std::string &expected, const AclInputNames &known) {
    return found != nullptr && known.count(found) != 0 && std::strstr(found, expected.c_str()) == nullptr;
}

Status other_interface(const GraphFile &file, const std::string &key) {
    return artifact_error("graph was built for another artifact").file(file.path).key(key);
}

}  // namespace

std::string acl_input_name(std::string tensor) {
    std::replace(tensor.begin(), tensor.end(), '.', '_');
    return tensor;
}

Result<AclGraph::Needs> AclGraph::query(const AclLibrary &acl, const std::string &path) {
    Needs needs;
    const int code = acl.aclmdlQuerySize(path.c_str(), &needs.work_bytes, &needs.weight_bytes);
    const Status status = acl.check("aclmdlQuerySize", code);
    if (!status.ok()) return status.file(path);
    return needs;
}

Result<std::unique_ptr<AclGraph>> AclGraph::load(const AclLibrary &acl, const GraphFile &file,
                                                 const Needs &needs, const DeviceBuffer &work,
                                                 const AclInputNames &known) {
    std::unique_ptr<AclGraph> graph(new AclGraph(acl, file));
    Result<AclArena> weights = AclArena::create(acl, needs.weight_bytes);
    NEXTN_RETURN_IF_ERROR(weights);
    graph->weights_ = std::move(*weights);
    uint32_t model = 0;
    const int code = acl.aclmdlLoadFromFileWithMem(file.path.c_str(), &model, work.place, work.bytes,
                                                   graph->weights_.data(), graph->weights_.bytes());
    const Status loaded = acl.check("aclmdlLoadFromFileWithMem", code);
    if (!loaded.ok()) return loaded.file(file.path);
    graph->model_ = {model, acl.aclmdlUnload};
    aclmdlDesc *const description = acl.aclmdlCreateDesc();
    NEXTN_RETURN_IF_ERROR(acl.check("aclmdlCreateDesc", description));
    graph->description_ = {description, acl.aclmdlDestroyDesc};
    NEXTN_RETURN_IF_ERROR(acl.check("aclmdlGetDesc", acl.aclmdlGetDesc(description, model)));
    NEXTN_RETURN_IF_ERROR(graph->check_inputs(file, known));
    NEXTN_RETURN_IF_ERROR(graph->check_output(file));
    return graph;
}

Status AclGraph::check_inputs(const GraphFile &file, const AclInputNames &known) const {
    const std::vector<TensorInfo> &tensors = file.info->tensors;
    aclmdlDesc *const description = description_.get();
    const size_t num_inputs = acl_.aclmdlGetNumInputs(description);
    if (num_inputs != tensors.size()) {
        return other_interface(file, "inputs").expected(tensors.size()).found(num_inputs);
    }
    for (size_t i = 0; i < num_inputs; ++i) {
        const size_t bytes = acl_.aclmdlGetInputSizeByIndex(description, i);
        if (bytes != static_cast<size_t>(tensors[i].bytes)) {
            return other_interface(file, concat("input ", i, " ", tensors[i].name))
                .expected(concat(tensors[i].bytes, " bytes"))
                .found(bytes);
        }
        const char *const name = acl_.aclmdlGetInputNameByIndex(description, i);
        const std::string expected = acl_input_name(tensors[i].name);
        if (is_another_input(name, expected, known)) {
            return other_interface(file, concat("input ", i)).expected(expected).found(name);
        }
    }
    return {};
}

Status AclGraph::check_output(const GraphFile &file) const {
    aclmdlDesc *const description = description_.get();
    const size_t num_outputs = acl_.aclmdlGetNumOutputs(description);
    if (num_outputs != 1) return other_interface(file, "outputs").expected(1).found(num_outputs);
    const size_t found = acl_.aclmdlGetOutputSizeByIndex(description, 0);
    const GraphInfo &graph = *file.info;
    const int64_t width = graph.returns == "result" ? result::width : control::width;
    const size_t bytes = static_cast<size_t>(graph.batch * width) * sizeof(int64_t);
    if (found == bytes) return {};
    return other_interface(file, "output 0, rows of " + graph.returns)
        .expected(concat(bytes, " bytes"))
        .found(found);
}

Status AclGraph::bind(const std::vector<DeviceBuffer> &inputs, const DeviceBuffer &output) {
    Result<Dataset> read = make_dataset(inputs);
    NEXTN_RETURN_IF_ERROR(read);
    inputs_ = std::move(*read);
    Result<Dataset> written = make_dataset({output});
    NEXTN_RETURN_IF_ERROR(written);
    outputs_ = std::move(*written);
    return {};
}

Result<AclGraph::Dataset> AclGraph::make_dataset(const std::vector<DeviceBuffer> &buffers) const {
    Dataset dataset;
    aclmdlDataset *const handle = acl_.aclmdlCreateDataset();
    NEXTN_RETURN_IF_ERROR(acl_.check("aclmdlCreateDataset", handle));
    dataset.handle = {handle, acl_.aclmdlDestroyDataset};
    for (const DeviceBuffer &buffer : buffers) {
        aclDataBuffer *const data = acl_.aclCreateDataBuffer(buffer.place, buffer.bytes);
        NEXTN_RETURN_IF_ERROR(acl_.check("aclCreateDataBuffer", data));
        dataset.buffers.push_back({data, acl_.aclDestroyDataBuffer});
        const int code = acl_.aclmdlAddDatasetBuffer(handle, data);
        NEXTN_RETURN_IF_ERROR(acl_.check("aclmdlAddDatasetBuffer", code));
    }
    return dataset;
}

Status AclGraph::launch(void *stream) const {
    const int code = acl_.aclmdlExecuteAsync(model_.get(), inputs_.get(), outputs_.get(), stream);
    if (code == acl_success) return {};
    return acl_.check("aclmdlExecuteAsync", code).key(key_);
}

}  // namespace nextn::core
