#pragma once

#include <cstdint>
#include <utility>

#include "acl_library.h"
#include "status.h"

namespace nextn::core {

/** Something that ACL gave out, and the function of ACL that takes it back. */
template <typename Value>
class AclHandle {
  public:
    using Release = int (*)(Value);

    AclHandle() = default;
    AclHandle(Value value, Release release) : value_(value), release_(release) {}
    AclHandle(AclHandle &&other) noexcept { swap(other); }
    AclHandle &operator=(AclHandle &&other) noexcept {
        AclHandle taken(std::move(other));
        swap(taken);
        return *this;
    }
    ~AclHandle() { reset(); }

    Value get() const { return value_; }
    void reset() {
        // Nothing can be done about a release that fails.
        if (release_ != nullptr) (void)release_(value_);
        release_ = nullptr;
        value_ = Value();
    }

  private:
    void swap(AclHandle &other) {
        std::swap(value_, other.value_);
        std::swap(release_, other.release_);
    }

    Value value_{};
    Release release_ = nullptr;
};

/** One device allocation, given out in parts. Calls need a current context. */
class AclArena {
  public:
    /** Room that `bytes` take up: kernels read up to 32 bytes past a tensor's end. */
    static size_t padded(size_t bytes) { return (bytes + overread + alignment - 1) / alignment * alignment; }

    static Result<AclArena> create(const AclLibrary &acl, size_t bytes);

    /** The next `padded(bytes)` bytes; the caller has added them up for `create`. */
    uint8_t *take(size_t bytes) { return std::exchange(next_, next_ + padded(bytes)); }

    uint8_t *data() const { return static_cast<uint8_t *>(memory_.get()); }
    size_t bytes() const { return bytes_; }
    void reset() { memory_.reset(); }

  private:
    static constexpr size_t alignment = 512;
    static constexpr size_t overread = 32;

    AclHandle<void *> memory_;
    size_t bytes_ = 0;
    uint8_t *next_ = nullptr;
};

/** Host memory that the device copies to and from by itself. */
Result<AclHandle<void *>> allocate_pinned(const AclLibrary &acl, size_t bytes);

/** Gives the calling thread back the context that it had, if it had one and that is still alive. */
class AclContextKeeper {
  public:
    explicit AclContextKeeper(const AclLibrary &acl);
    AclContextKeeper(const AclContextKeeper &) = delete;
    ~AclContextKeeper();

    /** NULL if the thread had none. */
    void *context() const { return context_; }
    /** Gives nothing back. */
    void forget() { context_ = nullptr; }

  private:
    const AclLibrary &acl_;
    void *context_ = nullptr;
};

/** Makes a context the calling thread's, until the thread gets its own back. */
class AclContextScope {
  public:
    AclContextScope(const AclLibrary &acl, void *context);

    const Status &status() const { return status_; }

  private:
    AclContextKeeper keeper_;
    Status status_;
};

}  // namespace nextn::core
