#include "external_backend.h"

#include <utility>

namespace nextn::core {
namespace {

nextn_tensor_kind public_kind(TensorKind kind) {
    if (kind == TensorKind::weight) return NEXTN_WEIGHT;
    return kind == TensorKind::state ? NEXTN_STATE : NEXTN_INPUT;
}

/** Why it failed is known to the host alone. */
Status failed(const char *what, const std::string &key) {
    return runtime_error(concat("the executor could not ", what)).key(key);
}

}  // namespace

Result<std::unique_ptr<Backend>> ExternalBackend::create(const nextn_executor &executor) {
    const bool whole = executor.attach != nullptr && executor.load != nullptr && executor.write != nullptr &&
                       executor.launch != nullptr && executor.wait != nullptr && executor.read != nullptr;
    if (!whole) return usage_error("a function of the executor is NULL");
    return std::unique_ptr<Backend>(new ExternalBackend(executor));
}

Status ExternalBackend::attach(const TensorTable &tensors) {
    std::vector<nextn_tensor> views;
    views.reserve(tensors.size());
    for (const auto &[name, tensor] : tensors) {
        views.push_back(
            {name.c_str(), dtype_name(tensor.dtype), tensor.data, tensor.bytes(), public_kind(tensor.kind)});
    }
    if (executor_.attach(executor_.user, views.data(), views.size())) return {};
    return runtime_error("the executor could not take the session's memory");
}

Result<std::vector<Graph *>> ExternalBackend::load(const std::vector<GraphFile> &files) {
    std::vector<Graph *> loaded;
    for (const GraphFile &file : files) {
        graphs_.push_back(std::make_unique<NamedGraph>(file.info->key()));
        const std::string &key = graphs_.back()->key;
        if (!executor_.load(executor_.user, key.c_str())) return failed("load a graph", key);
        loaded.push_back(graphs_.back().get());
    }
    return loaded;
}

Status ExternalBackend::write(const HostWrite &change) {
    if (executor_.write(executor_.user, change.tensor->c_str(), change.offset, change.bytes)) return {};
    return failed("take what the host wrote", *change.tensor);
}

Status ExternalBackend::replay(Graph *graph) {
    const std::string &key = static_cast<const NamedGraph *>(graph)->key;
    if (executor_.launch(executor_.user, key.c_str())) return {};
    return failed("run a graph", key);
}

Status ExternalBackend::sync() {
    if (executor_.wait(executor_.user)) return {};
    return runtime_error("the executor could not wait for its graphs");
}

Status ExternalBackend::read(const std::string &state) {
    if (executor_.read(executor_.user, state.c_str())) return {};
    return failed("read a state buffer", state);
}

}  // namespace nextn::core
