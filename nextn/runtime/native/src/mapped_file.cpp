#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace nextn::core {
namespace {

Status open_error(const std::string &path, int error) {
    const bool machine_fault = error == EMFILE || error == ENFILE || error == ENOMEM || error == EIO;
    return Status(machine_fault ? NEXTN_RUNTIME : NEXTN_ARTIFACT, "cannot open")
        .file(path)
        .expected("a readable file")
        .found(std::strerror(error));
}

class FileDescriptor {
  public:
    explicit FileDescriptor(int fd) : fd_(fd) {}
    FileDescriptor(const FileDescriptor &) = delete;
    ~FileDescriptor() {
        if (fd_ >= 0) close(fd_);
    }
    int get() const { return fd_; }

  private:
    int fd_;
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string &path) {
    // O_NONBLOCK: opening a pipe must not wait for a writer.
    const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) return open_error(path, errno);
    struct stat info;
    if (fstat(fd.get(), &info) != 0) return open_error(path, errno);
    if (!S_ISREG(info.st_mode)) {
        return artifact_error("cannot open").file(path).expected("a regular file").found("something else");
    }
    MappedFile file;
    if (info.st_size == 0) return file;
    const size_t size = static_cast<size_t>(info.st_size);
    void *data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return runtime_error("cannot map").file(path).found(std::strerror(errno));
    file.data_ = static_cast<const uint8_t *>(data);
    file.size_ = size;
    return file;
}

MappedFile &MappedFile::operator=(MappedFile &&other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<uint8_t *>(data_), size_);
}

}  // namespace nextn::core
