#include "model.h"

#include <climits>
#include <cstdlib>

#include "acl_backend.h"
#include "aoti_backend.h"
#include "cpu_features.h"
#include "external_backend.h"
#include "mapped_file.h"
#include "op_library.h"
#include "sha256.h"

namespace nextn::core {

Result<std::shared_ptr<const Model>> Model::open(const std::string &directory, const Options &options) {
    std::shared_ptr<Model> model(new Model);
    // Absolute, so that sessions created after a change of working directory find the graphs.
    char resolved[PATH_MAX];
    model->directory_ = realpath(directory.c_str(), resolved) != nullptr ? resolved : directory;
    NEXTN_RETURN_IF_ERROR(model->check(options));
    return std::shared_ptr<const Model>(std::move(model));
}

/** Everything that can be known without running code from the artifact, cheapest first. */
Status Model::check(const Options &options) {
    Result<Manifest> manifest = Manifest::read(directory_);
    NEXTN_RETURN_IF_ERROR(manifest);
    manifest_ = std::move(*manifest);
    NEXTN_RETURN_IF_ERROR(check_isa());
    for (const GraphInfo &graph : manifest_.graphs) NEXTN_RETURN_IF_ERROR(check_graph_file(graph));
    Result<SafetensorsFile> weights = SafetensorsFile::open(directory_ + "/" + manifest_.weights.file,
                                                            manifest_.weights, options.verify_weights);
    NEXTN_RETURN_IF_ERROR(weights);
    weights_ = std::move(*weights);
    NEXTN_RETURN_IF_ERROR(check_weight_tensors());
    return manifest_.requires_library(libtorch) ? load_torch(options.torch_library) : Status();
}

/** Libtorch and the kernels that AOTInductor's graphs call. */
Status Model::load_torch(const std::string &torch_library) {
    const Result<TorchApi> torch = TorchApi::load(torch_library);
    NEXTN_RETURN_IF_ERROR(torch);
    torch_ = *torch;
    NEXTN_RETURN_IF_ERROR(torch_.check_version(manifest_.torch_version, manifest_.path));
    return manifest_.requires_library(op_library) ? load_op_library() : Status();
}

Status Model::check_isa() const {
    for (const std::string &feature : manifest_.isa) {
        if (cpu_has(feature)) continue;
        return artifact_error("compiled for a wider instruction set")
            .file(manifest_.path)
            .key("target.isa")
            .expected(concat("a processor with ", feature))
            .found("this one");
    }
    return {};
}

Status Model::check_graph_file(const GraphInfo &graph) const {
    const std::string path = graph_path(graph);
    const Result<MappedFile> file = MappedFile::open(path);
    NEXTN_RETURN_IF_ERROR(file);
    if (file->size() != static_cast<size_t>(graph.bytes)) {
        return artifact_error("wrong size")
            .file(path)
            .expected(concat(graph.bytes, " bytes"))
            .found(file->size());
    }
    const std::string hash = sha256_hex(file->data(), file->size());
    if (hash == graph.sha256) return {};
    return artifact_error("graph was changed").file(path).key("sha256").expected(graph.sha256).found(hash);
}

Status Model::check_weight_tensors() const {
    for (const std::string &name : manifest_.weights.names) {
        if (weights_.find(name) != nullptr) continue;
        return artifact_error("missing tensor")
            .file(weights_.path())
            .key(name)
            .expected("a tensor")
            .found("none");
    }
    for (const GraphInfo &graph : manifest_.graphs) {
        for (const TensorInfo &tensor : graph.tensors) {
            if (tensor.kind != TensorKind::weight) continue;
            const BoundTensor *weight = weights_.find(tensor.name);
            if (weight != nullptr && weight->dtype == tensor.dtype && weight->shape == tensor.shape) continue;
            const std::string found = weight == nullptr
                                          ? "none"
                                          : concat(dtype_name(weight->dtype), " ", shape_text(weight->shape));
            return artifact_error("weight differs from what a graph expects")
                .file(weights_.path())
                .key(graph.key() + " " + tensor.name)
                .expected(concat(dtype_name(tensor.dtype), " ", shape_text(tensor.shape)))
                .found(found);
        }
    }
    return {};
}

Result<std::unique_ptr<Backend>> Model::make_backend(const nextn_executor *executor) const {
    if (executor != nullptr) return ExternalBackend::create(*executor);
    switch (manifest_.emit) {
        case Emit::aoti:
            return std::unique_ptr<Backend>(new AotiBackend(torch_));
        case Emit::air:
            return artifact_error(
                       "graphs must be compiled first: run build_om.sh, then nextn-compile --import-om")
                .file(manifest_.path)
                .key("target.emit")
                .expected("om")
                .found("air");
        case Emit::om: {
            Result<std::shared_ptr<const AclDevice>> opened = device();
            NEXTN_RETURN_IF_ERROR(opened);
            return std::unique_ptr<Backend>(new AclBackend(std::move(*opened)));
        }
        case Emit::other:
            break;
    }
    return usage_error(concat("graphs of format ", manifest_.emit_name, " are run by an executor"))
        .file(manifest_.path)
        .key("session_params.executor")
        .expected("an executor")
        .found("NULL");
}

Result<std::shared_ptr<const AclDevice>> Model::device() const {
    const std::lock_guard<std::mutex> lock(device_.mutex);
    if (device_.device == nullptr) {
        Result<std::shared_ptr<const AclDevice>> opened = AclDevice::open(manifest_, weights_);
        NEXTN_RETURN_IF_ERROR(opened);
        device_.device = std::move(*opened);
    }
    return device_.device;
}

int64_t Model::state_bytes() const {
    int64_t bytes = 0;
    for (const TensorInfo &tensor : manifest_.state_tensors()) bytes += tensor.bytes;
    return bytes;
}

}  // namespace nextn::core
