#include "manifest.h"

#include <algorithm>
#include <cstring>

#include "blocks.h"
#include "json.h"
#include "mapped_file.h"
#include "sha256.h"

namespace nextn::core {
namespace {

constexpr int64_t max_count = int64_t{1} << 48;
constexpr int64_t max_slots = 4096;
constexpr size_t max_dimensions = 8;
constexpr size_t max_manifest_bytes = size_t{256} << 20;

/** A relative path that cannot leave the artifact's folder. */
std::string inner_path(const JsonValue &value) {
    const std::string path = value.string();
    bool leaves = path.empty() || path.front() == '/';
    for (size_t begin = 0; begin <= path.size();) {
        const size_t end = std::min(path.find('/', begin), path.size());
        leaves = leaves || path.compare(begin, end - begin, "..") == 0;
        begin = end + 1;
    }
    if (leaves) value.refuse("a path inside the artifact");
    return path;
}

std::string hash_text(const JsonValue &value) {
    const std::string hash = value.string();
    if (!is_sha256_hex(hash)) value.refuse("64 lower-case hexadecimal digits");
    return hash;
}

DType read_dtype(const JsonValue &value) {
    const std::optional<DType> dtype = dtype_from_name(value.string());
    if (!dtype) value.refuse("a known dtype");
    return dtype.value_or(DType::float32);
}

void read_layout(const JsonValue &entry, TensorInfo *tensor) {
    tensor->dtype = read_dtype(entry["dtype"]);
    const JsonValue shape = entry["shape"];
    for (const JsonValue &size : shape.items()) tensor->shape.push_back(size.integer(0, max_count));
    const std::optional<int64_t> bytes = tensor_bytes(tensor->dtype, tensor->shape);
    if (!bytes || tensor->shape.size() > max_dimensions) shape.refuse("at most 8 dimensions and 2^62 bytes");
    tensor->bytes = bytes.value_or(0);
}

TensorKind read_kind(const JsonValue &value) {
    const std::string kind = value.string();
    if (kind == "state") return TensorKind::state;
    if (kind == "input") return TensorKind::input;
    if (kind != "weight") value.refuse("weight, state or input");
    return TensorKind::weight;
}

Emit read_emit(const std::string &emit) {
    if (emit == "aoti") return Emit::aoti;
    if (emit == "air") return Emit::air;
    return emit == "om" ? Emit::om : Emit::other;
}

void read_target(const JsonValue &root, Manifest *manifest) {
    manifest->torch_version = root["producer"]["torch"].string();
    const JsonValue target = root["target"];
    manifest->emit_name = target["emit"].string();
    manifest->emit = read_emit(manifest->emit_name);
    const std::string device = target["device"].string();
    const char *const own = manifest->emit == Emit::aoti ? "cpu" : "npu";
    if (manifest->emit != Emit::other && device != own) target["device"].refuse(own);
    target["world_size"].integer(1, 1);
    target["rank"].integer(0, 0);
    for (const JsonValue &feature : target["isa"].items()) manifest->isa.push_back(feature.string());
}

/** What graphs of libnextn's own formats need; an executor knows what those of others need. */
void read_requires(const JsonValue &required, Manifest *manifest) {
    for (const JsonValue &entry : required.items()) {
        const std::string name = entry.string();
        const bool known = name == libtorch || name == op_library || name == ascendcl;
        if (manifest->emit != Emit::other && !known) {
            entry.refuse(concat(libtorch, " or ", op_library, " or ", ascendcl,
                                ": this version of libnextn knows no other; install a newer one"));
        }
        manifest->required.push_back(name);
    }
}

void read_limits(const JsonValue &root, Manifest *manifest) {
    const JsonValue model = root["model"];
    manifest->vocab_size = model["vocab_size"].integer(1, INT32_MAX);
    for (const JsonValue &id : model["eos_token_ids"].items()) {
        manifest->eos_token_ids.push_back(id.integer(0, manifest->vocab_size - 1));
    }
    if (manifest->eos_token_ids.size() > max_eos) model["eos_token_ids"].refuse("at most 8 ids");

    const JsonValue speculation = root["speculation"];
    manifest->num_steps = speculation["num_steps"].integer(0, max_steps);
    speculation["num_draft_tokens"].integer(manifest->num_steps + 1, manifest->num_steps + 1);

    const JsonValue limits = root["limits"];
    manifest->max_seq_len = limits["max_seq_len"].integer(2, INT32_MAX);
    manifest->prefill_chunk = limits["prefill_chunk"].integer(1, INT32_MAX);
    limits["max_window_rows"].integer(max_window_rows, max_window_rows);
    int64_t largest = 0;
    for (const JsonValue &size : limits["batch_sizes"].items()) {
        largest = size.integer(largest + 1, max_slots);
        manifest->batch_sizes.push_back(largest);
    }
    if (largest == 0) limits["batch_sizes"].refuse("at least one batch size");
    manifest->slots = limits["slots"].integer(largest, largest);
}

void read_buffers(const JsonValue &root, Manifest *manifest) {
    for (const JsonValue &entry : root["state"].items()) {
        StateInfo state;
        state.name = entry["name"].string();
        state.rows_per_slot = entry["rows_per_slot"].integer(1, max_count);
        state.row_width = entry["row_width"].integer(1, max_count);
        state.dtype = read_dtype(entry["dtype"]);
        int64_t rows = 0;
        const bool overflow = __builtin_mul_overflow(state.rows_per_slot, manifest->slots + 1, &rows);
        if (overflow || !tensor_bytes(state.dtype, {rows, state.row_width}))
            entry.refuse("at most 2^62 bytes");
        manifest->state.push_back(std::move(state));
    }
    for (const JsonValue &entry : root["inputs"].items()) {
        TensorInfo input;
        input.name = entry["name"].string();
        input.kind = TensorKind::input;
        read_layout(entry, &input);
        manifest->inputs.push_back(std::move(input));
    }
}

template <size_t N>
void check_block(const JsonValue &block, int64_t width, const BlockField (&expected)[N]) {
    block["width"].integer(width, width);
    const JsonValue fields = block["fields"];
    for (const BlockField &field : expected) {
        const JsonValue place = fields[field.name];
        const std::vector<JsonValue> numbers = place.items();
        if (numbers.size() != 2) {
            place.refuse("[offset, length]");
            continue;
        }
        numbers[0].integer(field.offset, field.offset);
        numbers[1].integer(field.length, field.length);
    }
}

std::string read_block(const JsonValue &graph) {
    const std::string block = graph["returns"].string();
    if (block != "result" && block != "control") graph["returns"].refuse("result or control");
    return block;
}

void read_graphs(const JsonValue &root, Manifest *manifest) {
    for (const JsonValue &entry : root["graphs"].items()) {
        GraphInfo graph;
        graph.name = entry["name"].string();
        graph.batch = entry["batch"].integer(1, max_slots);
        graph.file = inner_path(entry["file"]);
        graph.sha256 = hash_text(entry["sha256"]);
        graph.bytes = entry["bytes"].integer(1, max_count);
        for (const JsonValue &item : entry["tensors"].items()) {
            TensorInfo tensor;
            tensor.name = item["name"].string();
            tensor.kind = read_kind(item["kind"]);
            read_layout(item, &tensor);
            graph.tensors.push_back(std::move(tensor));
        }
        if (manifest->emit == Emit::air || manifest->emit == Emit::om) graph.returns = read_block(entry);
        manifest->graphs.push_back(std::move(graph));
    }
}

void read_weights(const JsonValue &entry, WeightsInfo *weights) {
    weights->file = inner_path(entry["file"]);
    weights->bytes = entry["bytes"].integer(8, int64_t{1} << 62);
    weights->header_bytes = entry["header_bytes"].integer(8, weights->bytes);
    weights->header_sha256 = hash_text(entry["header_sha256"]);
    weights->body_sha256 = hash_text(entry["body_sha256"]);
    for (const JsonValue &tensor : entry["tensors"].items())
        weights->names.push_back(tensor["name"].string());
}

/** The command that wrote the artifact, as far as it can be read. */
std::string rebuild_command(const JsonValue &root) {
    std::string command;
    for (const JsonValue &word : root.find("producer").find("command").items()) {
        command += word.string() + " ";
    }
    return (command.empty() ? "nextn-compile CHECKPOINT -o ARTIFACT " : command) + "--force";
}

Status check_format_version(const JsonDocument &document, const std::string &path) {
    const std::string version = document.root()["format_version"].string();
    NEXTN_RETURN_IF_ERROR(document.status());
    const size_t digits = std::min(version.find_first_not_of("0123456789"), version.size());
    if (version.substr(0, digits) == "2" && digits < version.size() && version[digits] == '.') return {};
    return artifact_error(
               concat("artifact of another format; compile it again: ", rebuild_command(document.root())))
        .file(path)
        .key("format_version")
        .expected("2.x")
        .found(version);
}

/** The manifest's own hash is taken with its 64 digits replaced by zeros. */
void check_own_hash(const JsonDocument &document, std::string text, const std::string &path) {
    const JsonValue value = document.root()["manifest_sha256"];
    const std::string recorded = hash_text(value);
    if (!document.status().ok()) return;
    const size_t place = text.find(recorded);
    if (place == std::string::npos || text.find(recorded, place + 1) != std::string::npos) {
        return value.refuse("these digits once in the file");
    }
    text.replace(place, recorded.size(), recorded.size(), '0');
    const std::string found = sha256_hex(text.data(), text.size());
    if (found != recorded) {
        document.refuse(artifact_error("manifest was changed after it was written")
                            .file(path)
                            .key("manifest_sha256")
                            .expected(recorded)
                            .found(found));
    }
}

}  // namespace

std::string slots_input(int64_t batch) {
    return concat("slots_b", batch);
}

Result<Manifest> Manifest::read(const std::string &directory) {
    Manifest manifest;
    manifest.path = directory + "/manifest.json";
    const Result<MappedFile> file = MappedFile::open(manifest.path);
    NEXTN_RETURN_IF_ERROR(file);
    if (file->size() > max_manifest_bytes) {
        return artifact_error("manifest too long").file(manifest.path).expected("at most 256 MiB");
    }
    manifest.text = file->text();
    const Result<JsonDocument> document = JsonDocument::parse(manifest.text, manifest.path);
    NEXTN_RETURN_IF_ERROR(document);
    const JsonValue root = document->root();

    // Version and hash first: the meaning of everything else depends on them.
    NEXTN_RETURN_IF_ERROR(check_format_version(*document, manifest.path));
    check_own_hash(*document, manifest.text, manifest.path);
    NEXTN_RETURN_IF_ERROR(document->status());
    read_target(root, &manifest);
    read_requires(root["requires"], &manifest);
    read_limits(root, &manifest);
    read_buffers(root, &manifest);
    check_block(root["blocks"]["control"], control::width, control::fields);
    check_block(root["blocks"]["result"], result::width, result::fields);
    read_graphs(root, &manifest);
    read_weights(root["weights"], &manifest.weights);
    NEXTN_RETURN_IF_ERROR(document->status());
    NEXTN_RETURN_IF_ERROR(check_tables(manifest));
    return manifest;
}

std::vector<TensorInfo> Manifest::state_tensors() const {
    std::vector<TensorInfo> tensors;
    for (const StateInfo &buffer : state) {
        TensorInfo tensor;
        tensor.name = buffer.name;
        tensor.kind = TensorKind::state;
        tensor.dtype = buffer.dtype;
        tensor.shape = {(slots + 1) * buffer.rows_per_slot, buffer.row_width};
        tensor.bytes = *tensor_bytes(tensor.dtype, tensor.shape);
        tensors.push_back(std::move(tensor));
    }
    return tensors;
}

bool Manifest::requires_library(const char *name) const {
    return std::find(required.begin(), required.end(), name) != required.end();
}

const GraphInfo *Manifest::find_graph(const std::string &name, int64_t batch) const {
    const auto place = std::find_if(graphs.begin(), graphs.end(), [&](const GraphInfo &graph) {
        return graph.name == name && graph.batch == batch;
    });
    return place == graphs.end() ? nullptr : &*place;
}

}  // namespace nextn::core
