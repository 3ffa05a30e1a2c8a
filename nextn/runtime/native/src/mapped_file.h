#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "status.h"

namespace nextn::core {

/** A regular file mapped read-only; its pages are shared with every other process that maps it. */
class MappedFile {
  public:
    static Result<MappedFile> open(const std::string &path);

    MappedFile() = default;
    MappedFile(MappedFile &&other) noexcept { *this = std::move(other); }
    MappedFile &operator=(MappedFile &&other) noexcept;
    ~MappedFile();

    const uint8_t *data() const { return data_; }
    size_t size() const { return size_; }
    std::string_view text() const { return {reinterpret_cast<const char *>(data_), size_}; }

  private:
    const uint8_t *data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace nextn::core
