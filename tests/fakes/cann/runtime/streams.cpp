// Streams and events. Everything submitted is done at once; an event only carries a capture to another
// stream.

#include <atomic>

#include "capture.h"
#include "contexts.h"
#include "faults.h"
#include "handles.h"

using namespace fake_cann;

namespace {

aclError make_event(aclrtEvent *event) {
    *event = handles<Event>().make({});
    return ACL_SUCCESS;
}

aclError done_if(bool found) {
    return found ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

}  // namespace

extern "C" uint64_t fake_cann_live_streams() {
    return handles<Stream>().size();
}
extern "C" uint64_t fake_cann_live_events() {
    return handles<Event>().size();
}

aclError aclrtCreateStream(aclrtStream *stream) {
    if (is_to_fail(__func__)) return injected_fault;
    if (has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    static std::atomic<int32_t> next{1};
    *stream = handles<Stream>().make({next++, nullptr, current_context()});
    return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t, uint32_t) {
    return aclrtCreateStream(stream);
}

aclError aclrtDestroyStream(aclrtStream stream) {
    if (has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    return done_if(handles<Stream>().drop(stream));
}

aclError aclrtDestroyStreamForce(aclrtStream stream) {
    return aclrtDestroyStream(stream);
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t *id) {
    const Stream *found = handles<Stream>().find(stream);
    *id = found == nullptr ? 0 : found->id;
    return ACL_SUCCESS;
}

aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus *status) {
    *status = ACL_STREAM_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
    if (is_to_fail(__func__)) return injected_fault;
    return wait_for_device(stream, {"sync", "stream"});
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) {
    return aclrtSynchronizeStream(stream);
}

aclError aclrtSynchronizeDevice() {
    return wait_for_device(nullptr, {"sync", "device"});
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t) {
    return aclrtSynchronizeDevice();
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
    if (handles<Event>().find(event) == nullptr) return ACL_ERROR_RT_PARAM_INVALID;
    return wait_for_device(nullptr, {"sync", "event"});
}

aclError aclrtCreateEvent(aclrtEvent *event) {
    return make_event(event);
}

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t) {
    return make_event(event);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t) {
    return make_event(event);
}

aclError aclrtDestroyEvent(aclrtEvent event) {
    return done_if(handles<Event>().drop(event));
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
    Event *found = handles<Event>().find(event);
    if (found != nullptr) found->capture = capture_of(stream);
    return done_if(found != nullptr);
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
    const Event *awaited = handles<Event>().find(event);
    if (awaited == nullptr) return ACL_ERROR_RT_PARAM_INVALID;
    Stream *waiting = handles<Stream>().find(stream);
    const bool joins = awaited->capture != nullptr && awaited->capture->open;
    if (waiting != nullptr && joins) waiting->capture = awaited->capture;
    return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream) {
    return done_if(handles<Event>().find(event) != nullptr);
}

aclError aclrtQueryEventStatus(aclrtEvent, aclrtEventRecordedStatus *status) {
    *status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus *status) {
    *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *milliseconds, aclrtEvent, aclrtEvent) {
    *milliseconds = 0;
    return ACL_SUCCESS;
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void *argument) {
    return submit(stream, {"host_function"}, [=] {
        function(argument);
        return ACL_SUCCESS;
    });
}

aclError aclrtLaunchCallback(aclrtCallback function, void *argument, aclrtCallbackBlockType,
                             aclrtStream stream) {
    return aclrtLaunchHostFunc(stream, function, argument);
}
