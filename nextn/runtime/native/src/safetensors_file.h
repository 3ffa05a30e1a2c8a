#pragma once

#include <string>
#include <unordered_map>

#include "manifest.h"
#include "mapped_file.h"
#include "status.h"
#include "tensor.h"

namespace nextn::core {

/** The weights file: mapped once, its header proven against the manifest and against the file's own size. */
class SafetensorsFile {
  public:
    static Result<SafetensorsFile> open(const std::string &path, const WeightsInfo &expected, bool hash_body);

    /** Null if there is no such tensor. The memory is read-only. */
    const BoundTensor *find(const std::string &name) const;
    const std::string &path() const { return path_; }
    size_t bytes() const { return file_.size(); }

  private:
    Status check_bytes(const WeightsInfo &expected, bool hash_body) const;
    Status read_header(int64_t header_bytes);

    std::string path_;
    MappedFile file_;
    std::unordered_map<std::string, BoundTensor> tensors_;
};

}  // namespace nextn::core
