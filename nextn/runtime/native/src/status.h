#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <variant>

#include "nextn.h"

#define NEXTN_RETURN_IF_ERROR(expression)             \
    do {                                              \
        const auto &outcome_ = (expression);          \
        if (!outcome_.ok()) return outcome_.status(); \
    } while (false)

namespace nextn::core {

template <typename... Parts>
std::string concat(const Parts &...parts) {
    std::ostringstream stream;
    (stream << ... << parts);
    return stream.str();
}

/** `text` on one line without control characters, cut to `limit` bytes: it may come from a hostile file. */
std::string printable(const std::string &text, size_t limit = 200);

/** Success, or a status code with one line of text. Success allocates nothing. */
class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(nextn_status code, const std::string &message) : code_(code), message_(printable(message, 400)) {}

    bool ok() const { return code_ == NEXTN_OK; }
    nextn_status code() const { return code_; }
    const Status &status() const { return *this; }

    /** Adds `label value` to the details that follow the message in brackets. */
    template <typename Value>
    Status with(const char *label, const Value &value) const {
        Status result = *this;
        result.details_ += (details_.empty() ? "" : ", ") + concat(label, " ", printable(concat(value)));
        return result;
    }
    template <typename Value>
    Status file(const Value &value) const {
        return with("file", value);
    }
    template <typename Value>
    Status key(const Value &value) const {
        return with("key", value);
    }
    template <typename Value>
    Status expected(const Value &value) const {
        return with("expected", value);
    }
    template <typename Value>
    Status found(const Value &value) const {
        return with("found", value);
    }

    std::string text() const { return details_.empty() ? message_ : message_ + " (" + details_ + ")"; }

  private:
    nextn_status code_ = NEXTN_OK;
    std::string message_;
    std::string details_;
};

inline Status usage_error(const std::string &message) {
    return {NEXTN_USAGE, message};
}
inline Status artifact_error(const std::string &message) {
    return {NEXTN_ARTIFACT, message};
}
inline Status runtime_error(const std::string &message) {
    return {NEXTN_RUNTIME, message};
}

/** A value, or the status that says why there is none. */
template <typename T>
class [[nodiscard]] Result {
  public:
    Result(T value) : content_(std::in_place_index<0>, std::move(value)) {}
    Result(Status status) : content_(std::in_place_index<1>, std::move(status)) {}

    bool ok() const { return content_.index() == 0; }
    const Status &status() const { return std::get<1>(content_); }
    T &value() { return std::get<0>(content_); }
    const T &value() const { return std::get<0>(content_); }
    T &operator*() { return value(); }
    const T &operator*() const { return value(); }
    T *operator->() { return &value(); }
    const T *operator->() const { return &value(); }

  private:
    std::variant<T, Status> content_;
};

}  // namespace nextn::core
