#include "capture.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "contexts.h"
#include "handles.h"
#include "settings.h"

namespace fake_cann {
namespace {

std::mutex &capture_mutex() {
    static auto &mutex = *new std::mutex;
    return mutex;
}

std::vector<std::shared_ptr<Capture>> &open_captures() {
    static auto &captures = *new std::vector<std::shared_ptr<Capture>>;
    return captures;
}

thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

void close(const std::shared_ptr<Capture> &capture) {
    capture->open = false;
    auto &all = open_captures();
    all.erase(std::remove(all.begin(), all.end(), capture), all.end());
}

/** All tasks, up to the first that fails. */
aclError replay(const Capture &capture) {
    for (const Work &task : capture.tasks) {
        const aclError error = task ? task() : ACL_SUCCESS;
        if (error != ACL_SUCCESS) return error;
    }
    return ACL_SUCCESS;
}

int32_t id_of(aclrtStream stream) {
    const Stream *found = handles<Stream>().find(stream);
    return found == nullptr ? 0 : found->id;
}

/** What keeps the calling thread from using the stream: no context, or another than it was made in. */
aclError context_error(aclrtStream stream) {
    if (has_no_context()) return ACL_ERROR_RT_CONTEXT_NULL;
    const Stream *found = handles<Stream>().find(stream);
    const bool is_foreign = found != nullptr && found->context != current_context();
    return is_foreign ? ACL_ERROR_RT_STREAM_CONTEXT : ACL_SUCCESS;
}

/** Logs what is no task of its own, such as the bounds of a task group. */
void mark(aclrtStream stream, Entry entry) {
    entry.stream = id_of(stream);
    entry.captured = capture_of(stream) != nullptr;
    note(std::move(entry));
}

}  // namespace

std::shared_ptr<Capture> capture_of(aclrtStream stream) {
    Stream *found = handles<Stream>().find(stream);
    // A side stream joined the capture through an event; it leaves when the capture ends.
    return found != nullptr && found->capture != nullptr && found->capture->open ? found->capture : nullptr;
}

bool is_capture_open() {
    const std::lock_guard<std::mutex> lock(capture_mutex());
    return !open_captures().empty();
}

bool disturbs_a_capture() {
    if (thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) return false;
    const std::lock_guard<std::mutex> lock(capture_mutex());
    const auto disturbed = [](const std::shared_ptr<Capture> &capture) {
        if (capture->thread == std::this_thread::get_id()) {
            return capture->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
        }
        return capture->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL &&
               thread_mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
    };
    return std::any_of(open_captures().begin(), open_captures().end(), disturbed);
}

aclError submit(aclrtStream stream, Entry entry, const Work &work) {
    const std::shared_ptr<Capture> capture = capture_of(stream);
    entry.stream = id_of(stream);
    entry.captured = capture != nullptr;
    const aclError refused = context_error(stream);
    if (refused != ACL_SUCCESS) {
        entry.error = refused;
    } else if (capture != nullptr) {
        const std::lock_guard<std::mutex> lock(capture_mutex());
        capture->tasks.push_back(work);
    } else if (work) {
        entry.error = work();
    }
    const aclError error = entry.error;
    note(std::move(entry));
    return error;
}

aclError wait_for_device(aclrtStream stream, Entry entry, const std::function<aclError(Entry *)> &work) {
    entry.stream = id_of(stream);
    entry.blocking = true;
    entry.captured = capture_of(stream) != nullptr || disturbs_a_capture();
    const aclError refused = context_error(stream);
    if (refused != ACL_SUCCESS) {
        entry.error = refused;
    } else if (entry.captured && is_strict()) {
        entry.error = ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
    } else if (work) {
        entry.error = work(&entry);
    }
    const aclError error = entry.error;
    note(std::move(entry));
    return error;
}

}  // namespace fake_cann

using namespace fake_cann;

extern "C" uint64_t fake_cann_live_captured_graphs() {
    return handles<CapturedGraph>().size();
}

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
    Stream *found = handles<Stream>().find(stream);
    if (found == nullptr) return ACL_ERROR_RT_PARAM_INVALID;
    if (capture_of(stream) != nullptr) return ACL_ERROR_RT_STREAM_CAPTURED;
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = stream;
    capture->handle = handles<CapturedGraph>().make({capture});
    found->capture = capture;
    {
        const std::lock_guard<std::mutex> lock(capture_mutex());
        open_captures().push_back(std::move(capture));
    }
    Entry entry{"capture_begin"};
    entry.stream = found->id;
    entry.captured = true;
    note(entry);
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus *status, aclmdlRI *model) {
    const std::shared_ptr<Capture> capture = capture_of(stream);
    *status = capture != nullptr ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    if (model != nullptr) *model = capture != nullptr ? capture->handle : nullptr;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *model) {
    const std::shared_ptr<Capture> capture = capture_of(stream);
    if (capture == nullptr) return ACL_ERROR_RT_STREAM_NOT_CAPTURED;
    if (capture->origin != stream) return ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED;
    {
        const std::lock_guard<std::mutex> lock(capture_mutex());
        close(capture);
    }
    *model = capture->handle;
    Entry entry{"capture_end"};
    entry.stream = id_of(stream);
    entry.tasks = capture->tasks.size();
    entry.captured = true;
    note(entry);
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode) {
    std::swap(thread_mode, *mode);
    return ACL_SUCCESS;
}

aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream stream) {
    const CapturedGraph *graph = handles<CapturedGraph>().find(model);
    if (graph == nullptr || graph->capture->open) return ACL_ERROR_RT_PARAM_INVALID;
    Entry entry{"replay", "captured graph"};
    entry.tasks = graph->capture->tasks.size();
    return submit(stream, entry, [capture = graph->capture] { return replay(*capture); });
}

aclError aclmdlRIDestroy(aclmdlRI model) {
    return handles<CapturedGraph>().drop(model) ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID;
}

aclError aclmdlRICaptureTaskGrpBegin(aclrtStream stream) {
    mark(stream, {"task_group", "begin"});
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskGrpEnd(aclrtStream stream, aclrtTaskGrp *group) {
    mark(stream, {"task_group", "end"});
    // Only an identity; it must outlive the graph, and no function gives it back.
    static char identity;
    *group = &identity;
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream stream, aclrtTaskGrp) {
    mark(stream, {"task_update", "begin"});
    return ACL_SUCCESS;
}

aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream stream) {
    mark(stream, {"task_update", "end"});
    return ACL_SUCCESS;
}
