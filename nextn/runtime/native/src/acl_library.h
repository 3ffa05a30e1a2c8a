#pragma once

#include "acl_abi.h"
#include "status.h"

namespace nextn::core {

/** CANN's runtime in this process: its functions, initialised. */
class AclLibrary : public AclApi {
  public:
    /**
     * Opens it once per process, and leaves it open: ACL cannot be initialised again after an aclFinalize,
     * which therefore comes when the process ends, and only if nobody else in the process had initialised it.
     */
    static Result<const AclLibrary *> load();

    /** What a call came to; `code` is what it returned. */
    Status check(const char *call, int code) const;
    /** Of a call that returns a pointer. */
    Status check(const char *call, const void *pointer) const;

  private:
    AclLibrary() = default;
    Status open();
    Status initialize() const;
    Status failure(const char *call, const std::string &reason) const;
};

}  // namespace nextn::core
