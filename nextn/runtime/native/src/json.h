#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "status.h"

struct yyjson_doc;
struct yyjson_val;

namespace nextn::core {

/** Where reads of one document leave the first thing they found wrong. */
struct JsonFaults {
    std::string file;
    Status first;
};

/**
 * A value with its place in the document. A read that does not find what it asks for records a fault and
 * returns an empty default, so that a reader takes a whole document and asks once whether all of it was
 * there.
 */
class JsonValue {
  public:
    JsonValue(yyjson_val *value, std::string path, JsonFaults *faults)
        : value_(value), path_(std::move(path)), faults_(faults) {}

    JsonValue operator[](const char *key) const;
    /** Like `[]`, but an absent member is no fault. */
    JsonValue find(const char *key) const;
    bool present() const { return value_ != nullptr; }

    int64_t integer(int64_t low, int64_t high) const;
    /** Non-empty and without control characters. */
    std::string string() const;
    std::vector<JsonValue> items() const;
    std::vector<std::pair<std::string, JsonValue>> members() const;

    const std::string &path() const { return path_; }
    void refuse(const std::string &expected) const;

  private:
    std::string describe() const;

    yyjson_val *value_;
    std::string path_;
    JsonFaults *faults_;
};

/** A parsed document in which no object repeats a key. */
class JsonDocument {
  public:
    static Result<JsonDocument> parse(std::string_view text, const std::string &file);

    JsonValue root() const;
    const Status &status() const { return faults_->first; }
    void refuse(const Status &fault) const;

  private:
    struct Free {
        void operator()(yyjson_doc *document) const;
    };
    std::unique_ptr<yyjson_doc, Free> document_;
    std::unique_ptr<JsonFaults> faults_;
};

}  // namespace nextn::core
