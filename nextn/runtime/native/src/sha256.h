#pragma once

#include <cstddef>
#include <string>

#include "sha2.h"

namespace nextn::core {

class Sha256 {
  public:
    Sha256() { SHA256Init(&context_); }

    void update(const void *data, size_t size) {
        SHA256Update(&context_, static_cast<const uint8_t *>(data), size);
    }
    /** 64 lower-case hexadecimal digits; the object is spent. */
    std::string finish();

  private:
    SHA2_CTX context_;
};

std::string sha256_hex(const void *data, size_t size);
bool is_sha256_hex(const std::string &text);

}  // namespace nextn::core
