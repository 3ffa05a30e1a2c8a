// Which streams are being captured, and what that forbids.

#pragma once

#include <acl/acl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "log.h"

namespace fake_cann {

/** What a call does, apart from being logged. */
using Work = std::function<aclError()>;

/** A capture from its begin; after its end, the graph that `aclmdlRIExecuteAsync` replays. */
struct Capture {
    aclmdlRICaptureMode mode;
    std::thread::id thread;
    aclrtStream origin = nullptr;
    aclmdlRI handle = nullptr;
    bool open = true;
    std::vector<Work> tasks;
};

struct Stream {
    int32_t id = 0;
    std::shared_ptr<Capture> capture;
    aclrtContext context = nullptr;
};

struct Event {
    std::shared_ptr<Capture> capture;
};

/** What the handle of a capture stands for. */
struct CapturedGraph {
    std::shared_ptr<Capture> capture;
};

/** The open capture that a stream belongs to, or null. */
std::shared_ptr<Capture> capture_of(aclrtStream stream);
/** Whether a capture is open in any thread. */
bool is_capture_open();
/** Whether an unsafe call of this thread would disturb an open capture, by the rules of the capture modes. */
bool disturbs_a_capture();

/**
 * Logs a call that the device does by itself, and gives the code to return. The work is done at once, or by
 * every replay if the stream is captured; its result is the entry's error.
 */
aclError submit(aclrtStream stream, Entry entry, const Work &work = nullptr);
/**
 * Does `work`, whose result is the entry's error, logs it as a call for which the host waits, and gives the
 * code to return. Inside a capture that is an error in strict mode, and the work is not done.
 */
aclError wait_for_device(aclrtStream stream, Entry entry,
                         const std::function<aclError(Entry *)> &work = nullptr);

}  // namespace fake_cann
