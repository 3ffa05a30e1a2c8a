#include "acl_memory.h"

#include <algorithm>

namespace nextn {

Result<AclArena> AclArena::create(const AclLibrary &acl, size_t bytes) {
    AclArena arena;
    arena.bytes_ = std::max(bytes, alignment);  // an empty allocation is an error
    void *memory = nullptr;
    const Status status =
        acl.check("aclrtMalloc", acl.aclrtMalloc(&memory, arena.bytes_, acl_huge_pages_first));
    if (!status.ok()) return status.with("bytes", arena.bytes_);
    arena.memory_ = {memory, acl.aclrtFree};
    arena.next_ = arena.data();
    return arena;
}

Result<AclHandle<void *>> allocate_pinned(const AclLibrary &acl, size_t bytes) {
    void *memory = nullptr;
    const Status status = acl.check("aclrtMallocHost", acl.aclrtMallocHost(&memory, bytes));
    if (!status.ok()) return status.with("bytes", bytes);
    return AclHandle<void *>(memory, acl.aclrtFreeHost);
}

AclContextScope::AclContextScope(const AclLibrary &acl, void *context) : acl_(acl) {
    // A thread may have none, which ACL takes for an error.
    if (acl.aclrtGetCurrentContext(&previous_) != acl_success) previous_ = nullptr;
    if (previous_ == context) {
        previous_ = nullptr;
        return;
    }
    status_ = acl.check("aclrtSetCurrentContext", acl.aclrtSetCurrentContext(context));
}

AclContextScope::~AclContextScope() {
    if (previous_ != nullptr) (void)acl_.aclrtSetCurrentContext(previous_);
}

}  // namespace nextn
