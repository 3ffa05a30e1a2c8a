#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "blocks.h"
#include "manifest.h"

namespace nextn::core {
namespace {

using Table = std::unordered_map<std::string, TensorInfo>;

std::string layout_text(const TensorInfo &tensor) {
    return concat(dtype_name(tensor.dtype), " ", shape_text(tensor.shape));
}

Status check_layout(const Manifest &manifest, const std::string &key, const TensorInfo &expected,
                    const TensorInfo &found) {
    if (expected.dtype == found.dtype && expected.shape == found.shape) return {};
    return artifact_error("tensor differs from its declaration")
        .file(manifest.path)
        .key(key)
        .expected(layout_text(expected))
        .found(layout_text(found));
}

Status repeated(const Manifest &manifest, const std::string &key) {
    return artifact_error("repeated name").file(manifest.path).key(key).expected("each name once");
}

/** Every state buffer and input by name. */
Result<Table> collect_buffers(const Manifest &manifest) {
    Table table;
    int64_t total = 0;
    for (const auto &tensors : {manifest.state_tensors(), manifest.inputs}) {
        for (const TensorInfo &tensor : tensors) {
            if (!table.emplace(tensor.name, tensor).second) return repeated(manifest, tensor.name);
            if (__builtin_add_overflow(total, tensor.bytes, &total) || total > int64_t{1} << 62) {
                return artifact_error("state too large").file(manifest.path).expected("at most 2^62 bytes");
            }
        }
    }
    return table;
}

TensorInfo int64_tensor(const std::string &name, TensorKind kind, const Shape &shape) {
    TensorInfo tensor;
    tensor.name = name;
    tensor.kind = kind;
    tensor.dtype = DType::int64;
    tensor.shape = shape;
    tensor.bytes = *tensor_bytes(tensor.dtype, shape);
    return tensor;
}

/** The buffers through which the host and the graphs talk. */
Status check_protocol(const Manifest &manifest, const Table &buffers) {
    std::vector<TensorInfo> required = {
        int64_tensor("control", TensorKind::state, {manifest.slots + 1, control::width}),
        int64_tensor("result", TensorKind::state, {manifest.slots + 1, result::width}),
        int64_tensor("prompt_slot", TensorKind::input, {1}),
        int64_tensor("prompt_tokens", TensorKind::input, {manifest.prefill_chunk}),
        int64_tensor("prompt_count", TensorKind::input, {1}),
    };
    for (const int64_t batch : manifest.batch_sizes) {
        required.push_back(int64_tensor(slots_input(batch), TensorKind::input, {batch}));
    }
    for (const TensorInfo &tensor : required) {
        const auto place = buffers.find(tensor.name);
        if (place == buffers.end() || place->second.kind != tensor.kind) {
            return artifact_error("missing buffer")
                .file(manifest.path)
                .key(tensor.kind == TensorKind::state ? "state" : "inputs")
                .expected(tensor.name + " " + layout_text(tensor));
        }
        NEXTN_RETURN_IF_ERROR(check_layout(manifest, tensor.name, tensor, place->second));
    }
    return {};
}

Status check_graph_tensors(const Manifest &manifest, const GraphInfo &graph, const Table &buffers,
                           const std::unordered_set<std::string> &weights) {
    std::unordered_set<std::string> seen;
    for (const TensorInfo &tensor : graph.tensors) {
        const std::string key = graph.key() + " " + tensor.name;
        if (!seen.insert(tensor.name).second) return repeated(manifest, key);
        if (tensor.kind == TensorKind::weight) {
            if (weights.count(tensor.name) != 0) continue;
            return artifact_error("unknown tensor").file(manifest.path).key(key).expected("a packed weight");
        }
        const auto place = buffers.find(tensor.name);
        if (place == buffers.end() || place->second.kind != tensor.kind) {
            return artifact_error("unknown tensor")
                .file(manifest.path)
                .key(key)
                .expected(tensor.kind == TensorKind::state ? "a state buffer" : "an input");
        }
        NEXTN_RETURN_IF_ERROR(check_layout(manifest, key, place->second, tensor));
    }
    return {};
}

/** Through these the host speaks to a graph; one that does without them would run, and do something else. */
std::vector<std::string> required_buffers(const GraphInfo &graph) {
    if (graph.name == "prefill") return {"control", "result", "prompt_slot", "prompt_tokens", "prompt_count"};
    if (graph.name == "seed") return {"control", "prompt_slot"};
    static const std::unordered_set<std::string> of_rounds = {"decode",       "verify",     "accept",
                                                              "draft_extend", "draft_step", "round"};
    if (of_rounds.count(graph.name) != 0) return {"control", slots_input(graph.batch)};
    return {};
}

Status check_graph_protocol(const Manifest &manifest, const GraphInfo &graph) {
    for (const std::string &name : required_buffers(graph)) {
        const bool bound = std::any_of(graph.tensors.begin(), graph.tensors.end(),
                                       [&](const TensorInfo &tensor) { return tensor.name == name; });
        if (bound) continue;
        return artifact_error("graph does not bind a required buffer")
            .file(manifest.path)
            .key(graph.key())
            .expected(name);
    }
    return {};
}

}  // namespace

Status check_tables(const Manifest &manifest) {
    const Result<Table> buffers = collect_buffers(manifest);
    NEXTN_RETURN_IF_ERROR(buffers);
    NEXTN_RETURN_IF_ERROR(check_protocol(manifest, *buffers));
    std::unordered_set<std::string> weights;
    for (const std::string &name : manifest.weights.names) {
        if (!weights.insert(name).second || buffers->count(name) != 0) return repeated(manifest, name);
    }
    std::unordered_set<std::string> keys;
    for (const GraphInfo &graph : manifest.graphs) {
        if (!keys.insert(graph.key()).second) return repeated(manifest, "graphs " + graph.key());
        NEXTN_RETURN_IF_ERROR(check_graph_tensors(manifest, graph, *buffers, weights));
        NEXTN_RETURN_IF_ERROR(check_graph_protocol(manifest, graph));
    }
    return {};
}

}  // namespace nextn::core
