// Walks protobuf's wire format. A truncated or foreign message ends the walk; nothing is read past its end.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fake_cann {

class WireReader;

struct WireField {
    enum Type { varint = 0, eight_bytes = 1, length_delimited = 2, four_bytes = 5 };

    uint64_t number = 0;
    uint64_t type = varint;
    uint64_t value = 0;
    const uint8_t *begin = nullptr;
    const uint8_t *end = nullptr;

    /** Or a text, or packed numbers: all have a length. */
    bool is_message() const { return type == length_delimited; }
    std::string text() const { return std::string(begin, end); }
    inline WireReader message() const;
};

class WireReader {
  public:
    explicit WireReader(const std::string &bytes)
        : at_(reinterpret_cast<const uint8_t *>(bytes.data())), end_(at_ + bytes.size()) {}
    WireReader(const uint8_t *begin, const uint8_t *end) : at_(begin), end_(end) {}

    bool at_end() const { return at_ == end_; }

    uint64_t varint() {
        uint64_t value = 0;
        for (unsigned shift = 0; at_ < end_ && shift < 64; shift += 7) {
            const uint8_t byte = *at_++;
            value |= static_cast<uint64_t>(byte & 0x7F) << shift;
            if ((byte & 0x80) == 0) break;
        }
        return value;
    }

    std::optional<WireField> next() {
        if (at_end()) return std::nullopt;
        const uint64_t tag = varint();
        WireField field;
        field.number = tag >> 3;
        field.type = tag & 7;
        uint64_t length = 0;
        switch (field.type) {
            case WireField::varint:
                field.value = varint();
                return field;
            case WireField::eight_bytes:
                length = 8;
                break;
            case WireField::length_delimited:
                length = varint();
                break;
            case WireField::four_bytes:
                length = 4;
                break;
            default:
                return stop();
        }
        if (length > static_cast<uint64_t>(end_ - at_)) return stop();
        field.begin = at_;
        at_ += length;
        field.end = at_;
        return field;
    }

  private:
    std::optional<WireField> stop() {
        at_ = end_;
        return std::nullopt;
    }

    const uint8_t *at_;
    const uint8_t *end_;
};

inline WireReader WireField::message() const {
    return WireReader(begin, end);
}

}  // namespace fake_cann
