#include "sha256.h"

namespace nextn::core {

std::string Sha256::finish() {
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA256Final(digest, &context_);
    std::string hex;
    for (const uint8_t byte : digest) {
        hex += "0123456789abcdef"[byte >> 4];
        hex += "0123456789abcdef"[byte & 15];
    }
    return hex;
}

std::string sha256_hex(const void *data, size_t size) {
    Sha256 hash;
    hash.update(data, size);
    return hash.finish();
}

bool is_sha256_hex(const std::string &text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace nextn::core
