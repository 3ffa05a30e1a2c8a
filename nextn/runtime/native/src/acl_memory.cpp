#include "acl_memory.h"

#include <algorithm>

namespace nextn::core {

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

AclContextKeeper::AclContextKeeper(const AclLibrary &acl) : acl_(acl) {
    // A thread may have none, which ACL takes for an error.
    if (acl.aclrtGetCurrentContext(&context_) != acl_success) context_ = nullptr;
}

AclContextKeeper::~AclContextKeeper() {
    // ACL cannot take a context away again: a thread that had none is left with the last one. And if the
    // thread's own was destroyed meanwhile, by whoever it belongs to, there is nothing to give back; what was
    // done here is done all the same.
    if (context_ != nullptr) (void)acl_.aclrtSetCurrentContext(context_);
}

AclContextScope::AclContextScope(const AclLibrary &acl, void *context) : keeper_(acl) {
    if (keeper_.context() == context) {
        keeper_.forget();
        return;
    }
    status_ = acl.check("aclrtSetCurrentContext", acl.aclrtSetCurrentContext(context));
}

}  // namespace nextn::core
