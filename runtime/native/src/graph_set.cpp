#include "graph_set.h"

#include <algorithm>
#include <utility>

namespace nextn {
namespace {

const std::string result_block = "result";

}  // namespace

Result<GraphSet> GraphSet::load(const Model &model, std::unique_ptr<Backend> backend, SessionMemory *memory,
                                RoundMode mode, int64_t max_live) {
    GraphSet set;
    set.mode_ = mode;
    set.num_steps_ = static_cast<uint64_t>(model.manifest().num_steps);
    set.memory_ = memory;
    set.backend_ = std::move(backend);
    NEXTN_RETURN_IF_ERROR(set.backend_->attach(memory->tensors()));
    NEXTN_RETURN_IF_ERROR(set.load_one(model, "prefill", 1, &set.prefill_));
    if (mode != RoundMode::plain) NEXTN_RETURN_IF_ERROR(set.load_one(model, "seed", 1, &set.seed_));
    for (const int64_t batch : model.manifest().batch_sizes) {
        NEXTN_RETURN_IF_ERROR(set.load_round(model, batch));
        if (batch >= max_live) break;
    }
    return set;
}

Status GraphSet::load_one(const Model &model, const char *name, int64_t batch, Graph **graph) {
    const GraphInfo *info = model.manifest().find_graph(name, batch);
    if (info == nullptr) {
        return artifact_error("missing graph")
            .file(model.manifest().path)
            .key("graphs")
            .expected(concat(name, ".b", batch))
            .found("none");
    }
    const Result<Graph *> loaded = backend_->load(*info, model.graph_path(*info));
    NEXTN_RETURN_IF_ERROR(loaded);
    *graph = *loaded;
    return {};
}

Status GraphSet::load_round(const Model &model, int64_t batch) {
    RoundGraphs graphs;
    graphs.batch = batch;
    if (mode_ == RoundMode::phases) {
        NEXTN_RETURN_IF_ERROR(load_one(model, "verify", batch, &graphs.verify));
        NEXTN_RETURN_IF_ERROR(load_one(model, "accept", batch, &graphs.accept));
        NEXTN_RETURN_IF_ERROR(load_one(model, "draft_extend", batch, &graphs.extend));
        if (num_steps_ > 1) NEXTN_RETURN_IF_ERROR(load_one(model, "draft_step", batch, &graphs.step));
    } else {
        const char *name = mode_ == RoundMode::fused ? "round" : "decode";
        NEXTN_RETURN_IF_ERROR(load_one(model, name, batch, &graphs.whole));
    }
    rounds_.push_back(graphs);
    return {};
}

int64_t GraphSet::batch_for(size_t live) const {
    const auto place = std::find_if(rounds_.begin(), rounds_.end(), [&](const RoundGraphs &graphs) {
        return graphs.batch >= static_cast<int64_t>(live);
    });
    return place == rounds_.end() ? rounds_.back().batch : place->batch;
}

Status GraphSet::launch(Graph *graph, Wait wait, nextn_metrics *metrics, float *microseconds) {
    const Clock::time_point start = Clock::now();
    for (const HostWrite &change : memory_->changes()) NEXTN_RETURN_IF_ERROR(backend_->write(change));
    memory_->forget_changes();
    NEXTN_RETURN_IF_ERROR(backend_->replay(graph));
    NEXTN_RETURN_IF_ERROR(wait == Wait::results ? backend_->read(result_block) : backend_->sync());
    *microseconds += std::chrono::duration<float, std::micro>(Clock::now() - start).count();
    ++metrics->num_graph_launches;
    return {};
}

Status GraphSet::prefill(bool last_chunk, nextn_metrics *metrics) {
    float microseconds = 0;
    const Wait wait = last_chunk ? Wait::results : Wait::finished;
    NEXTN_RETURN_IF_ERROR(launch(prefill_, wait, metrics, &microseconds));
    ++metrics->num_prefill_launches;
    metrics->prefill_ms += microseconds * 1e-3;
    return {};
}

Status GraphSet::seed(nextn_metrics *metrics) {
    if (seed_ == nullptr) return {};
    float microseconds = 0;
    NEXTN_RETURN_IF_ERROR(launch(seed_, Wait::finished, metrics, &microseconds));
    metrics->num_draft_forwards_prefill += num_steps_;
    metrics->prefill_ms += microseconds * 1e-3;
    return {};
}

Status GraphSet::round(int64_t batch, nextn_metrics *metrics, nextn_round_times *times) {
    const auto graphs = std::find_if(rounds_.begin(), rounds_.end(),
                                     [&](const RoundGraphs &candidate) { return candidate.batch == batch; });
    if (mode_ == RoundMode::phases) {
        NEXTN_RETURN_IF_ERROR(launch_phases(*graphs, metrics, times));
    } else {
        NEXTN_RETURN_IF_ERROR(launch(graphs->whole, Wait::results, metrics, &times->graph_us));
    }
    ++metrics->num_rounds;
    if (mode_ != RoundMode::plain) {
        ++metrics->num_draft_forwards_extend;
        metrics->num_draft_forwards_step += num_steps_ - 1;
    }
    metrics->decode_ms += times->graph_us * 1e-3;
    return {};
}

/** Each is waited for, so that each has its own time. */
Status GraphSet::launch_phases(const RoundGraphs &graphs, nextn_metrics *metrics, nextn_round_times *times) {
    const Wait after_extend = num_steps_ > 1 ? Wait::finished : Wait::results;
    NEXTN_RETURN_IF_ERROR(launch(graphs.verify, Wait::finished, metrics, &times->verify_us));
    NEXTN_RETURN_IF_ERROR(launch(graphs.accept, Wait::finished, metrics, &times->accept_us));
    NEXTN_RETURN_IF_ERROR(launch(graphs.extend, after_extend, metrics, &times->extend_us));
    for (uint64_t step = 1; step < num_steps_; ++step) {
        const Wait wait = step + 1 < num_steps_ ? Wait::finished : Wait::results;
        NEXTN_RETURN_IF_ERROR(launch(graphs.step, wait, metrics, &times->step_us));
    }
    times->graph_us = times->verify_us + times->accept_us + times->extend_us + times->step_us;
    return {};
}

}  // namespace nextn
