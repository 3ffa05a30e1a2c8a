#include "acl_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace nextn::core {
namespace {

/** More than a launch ever needs, so that a run allocates nothing. */
constexpr size_t most_copies = 16;

/** Whether the host writes or reads the tensor between graphs. */
bool is_exchanged(const std::string &name, TensorKind kind) {
    return kind == TensorKind::input || name == "control" || name == "result";
}

}  // namespace

AclBackend::AclBackend(std::shared_ptr<const AclDevice> device)
    : device_(std::move(device)), acl_(device_->acl()) {
    copies_.reserve(most_copies);
}

AclBackend::~AclBackend() {
    const AclContextScope scope(acl_, device_->context());
    // After a failure something may still be running on what is freed here.
    if (busy_) (void)acl_.aclrtSynchronizeStream(stream_.get());
    graphs_.clear();
    work_.reset();
    staging_.reset();
    buffers_.reset();
    stream_.reset();
}

Status AclBackend::attach(const TensorTable &tensors) {
    const AclContextScope scope(acl_, device_->context());
    NEXTN_RETURN_IF_ERROR(scope.status());
    void *stream = nullptr;
    NEXTN_RETURN_IF_ERROR(acl_.check("aclrtCreateStream", acl_.aclrtCreateStream(&stream)));
    stream_ = {stream, acl_.aclrtDestroyStream};
    NEXTN_RETURN_IF_ERROR(place_buffers(tensors));
    return place_staging(tensors);
}

/** State and inputs on the device, zero-filled, beside the model's weights. */
Status AclBackend::place_buffers(const TensorTable &tensors) {
    output_.bytes = tensors.at("control").bytes();  // at least as large as any graph's block of rows
    size_t total = AclArena::padded(output_.bytes);
    for (const auto &[name, tensor] : tensors) {
        if (tensor.kind != TensorKind::weight) total += AclArena::padded(tensor.bytes());
    }
    Result<AclArena> buffers = AclArena::create(acl_, total);
    NEXTN_RETURN_IF_ERROR(buffers);
    buffers_ = std::move(*buffers);
    const int code = acl_.aclrtMemset(buffers_.data(), buffers_.bytes(), 0, buffers_.bytes());
    NEXTN_RETURN_IF_ERROR(acl_.check("aclrtMemset", code));
    output_.place = buffers_.take(output_.bytes);
    for (const auto &[name, tensor] : tensors) {
        const bool is_weight = tensor.kind == TensorKind::weight;
        uint8_t *const place = is_weight ? device_->weight(name) : buffers_.take(tensor.bytes());
        tensors_[name] = {{place, tensor.bytes()}, nullptr, tensor.data};
    }
    return {};
}

Status AclBackend::place_staging(const TensorTable &tensors) {
    size_t total = 0;
    for (const auto &[name, tensor] : tensors) {
        if (is_exchanged(name, tensor.kind)) total += tensor.bytes();
    }
    Result<AclHandle<void *>> staging = allocate_pinned(acl_, total);
    NEXTN_RETURN_IF_ERROR(staging);
    staging_ = std::move(*staging);
    uint8_t *next = static_cast<uint8_t *>(staging_.get());
    for (const auto &[name, tensor] : tensors) {
        if (is_exchanged(name, tensor.kind))
            tensors_[name].staging = std::exchange(next, next + tensor.bytes());
    }
    return {};
}

Result<std::vector<Graph *>> AclBackend::load(const std::vector<GraphFile> &files) {
    const AclContextScope scope(acl_, device_->context());
    NEXTN_RETURN_IF_ERROR(scope.status());
    // Graphs run one after the other, so one work buffer does for all: that of the hungriest.
    std::vector<AclGraph::Needs> needs;
    size_t work_bytes = 0;
    for (const GraphFile &file : files) {
        const Result<AclGraph::Needs> needed = AclGraph::query(acl_, file.path);
        NEXTN_RETURN_IF_ERROR(needed);
        needs.push_back(*needed);
        work_bytes = std::max(work_bytes, needed->work_bytes);
    }
    Result<AclArena> work = AclArena::create(acl_, work_bytes);
    NEXTN_RETURN_IF_ERROR(work);
    work_ = std::move(*work);
    AclInputNames known;
    for (const auto &[name, tensor] : tensors_) known.insert(acl_input_name(name));
    std::vector<Graph *> graphs;
    for (size_t i = 0; i < files.size(); ++i) {
        Result<std::unique_ptr<AclGraph>> graph =
            AclGraph::load(acl_, files[i], needs[i], {work_.data(), work_.bytes()}, known);
        NEXTN_RETURN_IF_ERROR(graph);
        std::vector<DeviceBuffer> inputs;
        for (const TensorInfo &tensor : files[i].info->tensors)
            inputs.push_back(tensors_.at(tensor.name).buffer);
        NEXTN_RETURN_IF_ERROR((*graph)->bind(inputs, output_));
        graphs.push_back(graph->get());
        graphs_.push_back(std::move(*graph));
    }
    return graphs;
}

Status AclBackend::write(const HostWrite &change) {
    const AclContextScope scope(acl_, device_->context());
    NEXTN_RETURN_IF_ERROR(scope.status());
    if (is_being_copied(change)) NEXTN_RETURN_IF_ERROR(wait());
    const DeviceTensor &tensor = tensors_.at(*change.tensor);
    uint8_t *const staged = tensor.staging + change.offset;
    std::memcpy(staged, static_cast<const uint8_t *>(tensor.host) + change.offset, change.bytes);
    busy_ = true;
    const int code = acl_.aclrtMemcpyAsync(tensor.buffer.place + change.offset, change.bytes, staged,
                                           change.bytes, acl_host_to_device, stream_.get());
    NEXTN_RETURN_IF_ERROR(acl_.check("aclrtMemcpyAsync", code));
    copies_.push_back(change);
    return {};
}

bool AclBackend::is_being_copied(const HostWrite &change) const {
    return std::any_of(copies_.begin(), copies_.end(), [&](const HostWrite &copy) {
        return *copy.tensor == *change.tensor && copy.offset < change.offset + change.bytes &&
               change.offset < copy.offset + copy.bytes;
    });
}

Status AclBackend::replay(Graph *graph) {
    const AclContextScope scope(acl_, device_->context());
    NEXTN_RETURN_IF_ERROR(scope.status());
    busy_ = true;
    return static_cast<const AclGraph *>(graph)->launch(stream_.get());
}

Status AclBackend::sync() {
    if (!busy_) return {};
    const AclContextScope scope(acl_, device_->context());
    NEXTN_RETURN_IF_ERROR(scope.status());
    return wait();
}

Status AclBackend::wait() {
    NEXTN_RETURN_IF_ERROR(acl_.check("aclrtSynchronizeStream", acl_.aclrtSynchronizeStream(stream_.get())));
    copies_.clear();
    busy_ = false;
    return {};
}

Status AclBackend::read(const std::string &state) {
    const AclContextScope scope(acl_, device_->context());
    NEXTN_RETURN_IF_ERROR(scope.status());
    const DeviceTensor &tensor = tensors_.at(state);
    const size_t bytes = tensor.buffer.bytes;
    if (tensor.staging == nullptr) {
        if (busy_) NEXTN_RETURN_IF_ERROR(wait());
        const int code = acl_.aclrtMemcpy(tensor.host, bytes, tensor.buffer.place, bytes, acl_device_to_host);
        return acl_.check("aclrtMemcpy", code);
    }
    // What is on its way to the device out of the same staging memory would be overwritten.
    if (is_being_copied({&state, 0, bytes})) NEXTN_RETURN_IF_ERROR(wait());
    busy_ = true;
    const int code = acl_.aclrtMemcpyAsync(tensor.staging, bytes, tensor.buffer.place, bytes,
                                           acl_device_to_host, stream_.get());
    NEXTN_RETURN_IF_ERROR(acl_.check("aclrtMemcpyAsync", code));
    NEXTN_RETURN_IF_ERROR(wait());
    std::memcpy(tensor.host, tensor.staging, bytes);
    return {};
}

}  // namespace nextn::core
