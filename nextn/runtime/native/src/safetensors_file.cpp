#include "safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "json.h"
#include "sha256.h"

namespace nextn::core {
namespace {

constexpr int64_t length_bytes = 8;
constexpr int64_t max_offset = int64_t{1} << 62;

/** Tensor data from `begin` to `end`, counted from the end of the header. */
struct Span {
    std::string name;
    std::string dtype;
    Shape shape;
    int64_t begin = 0;
    int64_t end = 0;
};

Span read_span(const std::string &name, const JsonValue &entry) {
    Span span;
    span.name = name;
    span.dtype = entry["dtype"].string();
    for (const JsonValue &size : entry["shape"].items()) span.shape.push_back(size.integer(0, max_offset));
    const std::vector<JsonValue> offsets = entry["data_offsets"].items();
    if (offsets.size() != 2) {
        entry.refuse("data_offsets [begin, end]");
        return span;
    }
    span.begin = offsets[0].integer(0, max_offset);
    span.end = offsets[1].integer(span.begin, max_offset);
    return span;
}

/** Spans in file order; they must cover the body without overlap or hole. */
Status check_cover(const std::string &path, std::vector<Span> *spans, int64_t body_bytes) {
    std::sort(spans->begin(), spans->end(), [](const Span &a, const Span &b) {
        return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
    });
    int64_t end = 0;
    for (const Span &span : *spans) {
        if (span.begin != end) {
            return artifact_error(span.begin < end ? "overlapping tensors" : "hole between tensors")
                .file(path)
                .key(span.name)
                .expected(concat("offset ", end))
                .found(span.begin);
        }
        end = span.end;
    }
    if (end == body_bytes) return {};
    return artifact_error("tensors do not cover the file")
        .file(path)
        .expected(concat(end, " bytes of data"))
        .found(body_bytes);
}

Status hash_differs(const std::string &path, const char *key, const std::string &expected,
                    const std::string &found) {
    return artifact_error("weights were changed").file(path).key(key).expected(expected).found(found);
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string &path, const WeightsInfo &expected,
                                              bool hash_body) {
    Result<MappedFile> file = MappedFile::open(path);
    NEXTN_RETURN_IF_ERROR(file);
    SafetensorsFile weights;
    weights.path_ = path;
    weights.file_ = std::move(*file);
    NEXTN_RETURN_IF_ERROR(weights.check_bytes(expected, hash_body));
    NEXTN_RETURN_IF_ERROR(weights.read_header(expected.header_bytes));
    return weights;
}

Status SafetensorsFile::check_bytes(const WeightsInfo &expected, bool hash_body) const {
    const int64_t size = static_cast<int64_t>(file_.size());
    if (size != expected.bytes) {
        return artifact_error("wrong size")
            .file(path_)
            .expected(concat(expected.bytes, " bytes"))
            .found(size);
    }
    uint64_t json_bytes = 0;
    std::memcpy(&json_bytes, file_.data(), sizeof json_bytes);
    if (json_bytes != static_cast<uint64_t>(expected.header_bytes - length_bytes)) {
        return artifact_error("wrong header length")
            .file(path_)
            .expected(expected.header_bytes - length_bytes)
            .found(json_bytes);
    }
    const size_t header_bytes = static_cast<size_t>(expected.header_bytes);
    const std::string header = sha256_hex(file_.data(), header_bytes);
    if (header != expected.header_sha256) {
        return hash_differs(path_, "header_sha256", expected.header_sha256, header);
    }
    if (!hash_body) return {};
    const std::string body = sha256_hex(file_.data() + header_bytes, file_.size() - header_bytes);
    if (body != expected.body_sha256) return hash_differs(path_, "body_sha256", expected.body_sha256, body);
    return {};
}

Status SafetensorsFile::read_header(int64_t header_bytes) {
    const std::string_view text =
        file_.text().substr(length_bytes, static_cast<size_t>(header_bytes - length_bytes));
    const Result<JsonDocument> document = JsonDocument::parse(text, path_);
    NEXTN_RETURN_IF_ERROR(document);
    std::vector<Span> spans;
    for (const auto &[name, entry] : document->root().members()) {
        if (name != "__metadata__") spans.push_back(read_span(name, entry));
    }
    NEXTN_RETURN_IF_ERROR(document->status());
    NEXTN_RETURN_IF_ERROR(check_cover(path_, &spans, static_cast<int64_t>(file_.size()) - header_bytes));
    for (const Span &span : spans) {
        const std::optional<DType> dtype = dtype_from_safetensors(span.dtype);
        const std::optional<int64_t> bytes = dtype ? tensor_bytes(*dtype, span.shape) : std::nullopt;
        if (bytes != span.end - span.begin) {
            return artifact_error("dtype and shape contradict data_offsets")
                .file(path_)
                .key(span.name)
                .expected(concat(span.end - span.begin, " bytes of a known dtype"))
                .found(span.dtype + " " + shape_text(span.shape));
        }
        const int64_t offset = header_bytes + span.begin;
        if (offset % element_size(*dtype) != 0) {
            return artifact_error("misaligned tensor")
                .file(path_)
                .key(span.name)
                .found(concat("offset ", offset));
        }
        // Graphs take weights through a pointer to mutable memory, but only read them.
        tensors_[span.name] = {TensorKind::weight, *dtype, span.shape,
                               const_cast<uint8_t *>(file_.data()) + offset};
    }
    return {};
}

const BoundTensor *SafetensorsFile::find(const std::string &name) const {
    const auto place = tensors_.find(name);
    return place == tensors_.end() ? nullptr : &place->second;
}

}  // namespace nextn::core
