// Opaque handles that the fake gave out and has not been given back.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace fake_cann {

/** Objects of one kind by address, so that a stale or foreign handle is an error and not a crash. */
template <typename T>
class Handles {
  public:
    T *make(T value) {
        auto object = std::make_unique<T>(std::move(value));
        T *handle = object.get();
        const std::lock_guard<std::mutex> lock(mutex_);
        objects_.emplace(handle, std::move(object));
        return handle;
    }

    /** Null if `handle` is not alive. */
    T *find(const void *handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = objects_.find(handle);
        return found == objects_.end() ? nullptr : found->second.get();
    }

    bool drop(const void *handle) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return objects_.erase(handle) == 1;
    }

    size_t size() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return objects_.size();
    }

  private:
    std::mutex mutex_;
    std::unordered_map<const void *, std::unique_ptr<T>> objects_;
};

/** The one table for a kind of object; never destroyed, like the log. */
template <typename T>
Handles<T> &handles() {
    static auto &table = *new Handles<T>;
    return table;
}

}  // namespace fake_cann
