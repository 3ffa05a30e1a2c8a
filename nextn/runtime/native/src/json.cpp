#include "json.h"

#include <unordered_set>

#include "yyjson.h"

namespace nextn::core {
namespace {

constexpr int max_depth = 64;

/** Null, or what is wrong with the structure below `value`. */
const char *structure_fault(yyjson_val *value, int depth) {
    if (!yyjson_is_ctn(value)) return nullptr;
    if (depth == max_depth) return "nesting deeper than 64 levels";
    if (yyjson_is_arr(value)) {
        yyjson_arr_iter items = yyjson_arr_iter_with(value);
        while (yyjson_val *item = yyjson_arr_iter_next(&items)) {
            if (const char *fault = structure_fault(item, depth + 1)) return fault;
        }
        return nullptr;
    }
    std::unordered_set<std::string_view> keys;
    yyjson_obj_iter members = yyjson_obj_iter_with(value);
    while (yyjson_val *key = yyjson_obj_iter_next(&members)) {
        if (!keys.insert({yyjson_get_str(key), yyjson_get_len(key)}).second) return "a repeated key";
        if (const char *fault = structure_fault(yyjson_obj_iter_get_val(key), depth + 1)) return fault;
    }
    return nullptr;
}

bool has_control_characters(std::string_view text) {
    for (const char c : text) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return true;
    }
    return false;
}

}  // namespace

void JsonDocument::Free::operator()(yyjson_doc *document) const {
    yyjson_doc_free(document);
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const std::string &file) {
    yyjson_read_err error;
    // Without YYJSON_READ_INSITU the text is only read.
    yyjson_doc *parsed = yyjson_read_opts(const_cast<char *>(text.data()), text.size(), 0, nullptr, &error);
    if (parsed == nullptr) {
        return artifact_error("invalid JSON").file(file).found(concat(error.msg, " at byte ", error.pos));
    }
    JsonDocument document;
    document.document_.reset(parsed);
    document.faults_ = std::make_unique<JsonFaults>(JsonFaults{file, {}});
    if (const char *fault = structure_fault(yyjson_doc_get_root(parsed), 0)) {
        return artifact_error("invalid JSON").file(file).found(fault);
    }
    return document;
}

JsonValue JsonDocument::root() const {
    return {yyjson_doc_get_root(document_.get()), "", faults_.get()};
}

void JsonDocument::refuse(const Status &fault) const {
    if (faults_->first.ok()) faults_->first = fault;
}

JsonValue JsonValue::find(const char *key) const {
    std::string path = path_.empty() ? key : path_ + "." + key;
    return {yyjson_obj_get(value_, key), std::move(path), faults_};
}

JsonValue JsonValue::operator[](const char *key) const {
    JsonValue member = find(key);
    if (present() && !member.present()) member.refuse("a value");
    return member;
}

int64_t JsonValue::integer(int64_t low, int64_t high) const {
    if (present()) {
        // A number above INT64_MAX is unsigned in yyjson, and thus not `sint`.
        const bool fits =
            yyjson_is_int(value_) && (yyjson_is_sint(value_) || yyjson_get_uint(value_) <= INT64_MAX);
        const int64_t number = fits ? yyjson_get_sint(value_) : 0;
        if (fits && number >= low && number <= high) return number;
        refuse(concat("an integer in [", low, ", ", high, "]"));
    }
    return low;
}

std::string JsonValue::string() const {
    if (!present()) return {};
    if (yyjson_is_str(value_) && yyjson_get_len(value_) > 0) {
        const std::string_view text(yyjson_get_str(value_), yyjson_get_len(value_));
        if (!has_control_characters(text)) return std::string(text);
    }
    refuse("a non-empty string");
    return {};
}

std::vector<JsonValue> JsonValue::items() const {
    std::vector<JsonValue> result;
    if (present() && !yyjson_is_arr(value_)) refuse("an array");
    yyjson_arr_iter items = yyjson_arr_iter_with(value_);
    while (yyjson_val *item = yyjson_arr_iter_next(&items)) {
        result.emplace_back(item, concat(path_, "[", result.size(), "]"), faults_);
    }
    return result;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
    std::vector<std::pair<std::string, JsonValue>> result;
    if (present() && !yyjson_is_obj(value_)) refuse("an object");
    yyjson_obj_iter members = yyjson_obj_iter_with(value_);
    while (yyjson_val *key = yyjson_obj_iter_next(&members)) {
        std::string name(yyjson_get_str(key), yyjson_get_len(key));
        std::string path = path_.empty() ? name : path_ + "." + name;
        result.emplace_back(std::move(name),
                            JsonValue(yyjson_obj_iter_get_val(key), std::move(path), faults_));
    }
    return result;
}

void JsonValue::refuse(const std::string &expected) const {
    if (!faults_->first.ok()) return;
    faults_->first = artifact_error("unusable value")
                         .file(faults_->file)
                         .key(path_.empty() ? "(document)" : path_)
                         .expected(expected)
                         .found(describe());
}

std::string JsonValue::describe() const {
    if (!present()) return "nothing";
    if (yyjson_is_arr(value_)) return concat("an array of ", yyjson_get_len(value_));
    if (yyjson_is_obj(value_)) return "an object";
    if (yyjson_is_str(value_))
        return concat('"', std::string(yyjson_get_str(value_), yyjson_get_len(value_)), '"');
    if (yyjson_is_null(value_)) return "null";
    if (yyjson_is_bool(value_)) return yyjson_get_bool(value_) ? "true" : "false";
    if (yyjson_is_uint(value_)) return concat(yyjson_get_uint(value_));
    return concat(yyjson_get_num(value_));
}

}  // namespace nextn::core
