#include "graph_set.h"

#include <algorithm>

namespace nextn {

Result<GraphSet> GraphSet::load(const Model &model, const SessionMemory &memory, RoundMode mode,
                                int64_t max_live) {
    GraphSet set;
    set.mode_ = mode;
    set.num_steps_ = static_cast<uint64_t>(model.manifest().num_steps);
    set.backend_ = model.make_backend();
    NEXTN_RETURN_IF_ERROR(set.load_one(model, memory, "prefill", 1, &set.prefill_));
    if (mode != RoundMode::plain) NEXTN_RETURN_IF_ERROR(set.load_one(model, memory, "seed", 1, &set.seed_));
    for (const int64_t batch : model.manifest().batch_sizes) {
        NEXTN_RETURN_IF_ERROR(set.load_round(model, memory, batch));
        if (batch >= max_live) break;
    }
    return set;
}

Status GraphSet::load_one(const Model &model, const SessionMemory &memory, const char *name, int64_t batch,
                          Graph **graph) {
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
    return backend_->bind(*graph, memory.tensors());
}

Status GraphSet::load_round(const Model &model, const SessionMemory &memory, int64_t batch) {
    RoundGraphs graphs;
    graphs.batch = batch;
    if (mode_ == RoundMode::phases) {
        NEXTN_RETURN_IF_ERROR(load_one(model, memory, "verify", batch, &graphs.verify));
        NEXTN_RETURN_IF_ERROR(load_one(model, memory, "accept", batch, &graphs.accept));
        NEXTN_RETURN_IF_ERROR(load_one(model, memory, "draft_extend", batch, &graphs.extend));
        if (num_steps_ > 1) NEXTN_RETURN_IF_ERROR(load_one(model, memory, "draft_step", batch, &graphs.step));
    } else {
        const char *name = mode_ == RoundMode::fused ? "round" : "decode";
        NEXTN_RETURN_IF_ERROR(load_one(model, memory, name, batch, &graphs.whole));
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

Status GraphSet::launch(Graph *graph, nextn_metrics *metrics, float *microseconds) {
    const Clock::time_point start = Clock::now();
    NEXTN_RETURN_IF_ERROR(backend_->replay(graph));
    NEXTN_RETURN_IF_ERROR(backend_->sync());
    *microseconds += std::chrono::duration<float, std::micro>(Clock::now() - start).count();
    ++metrics->num_graph_launches;
    return {};
}

Status GraphSet::prefill(nextn_metrics *metrics) {
    float microseconds = 0;
    NEXTN_RETURN_IF_ERROR(launch(prefill_, metrics, &microseconds));
    ++metrics->num_prefill_launches;
    metrics->prefill_ms += microseconds * 1e-3;
    return {};
}

Status GraphSet::seed(nextn_metrics *metrics) {
    if (seed_ == nullptr) return {};
    float microseconds = 0;
    NEXTN_RETURN_IF_ERROR(launch(seed_, metrics, &microseconds));
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
        NEXTN_RETURN_IF_ERROR(launch(graphs->whole, metrics, &times->graph_us));
    }
    ++metrics->num_rounds;
    if (mode_ != RoundMode::plain) {
        ++metrics->num_draft_forwards_extend;
        metrics->num_draft_forwards_step += num_steps_ - 1;
    }
    metrics->decode_ms += times->graph_us * 1e-3;
    return {};
}

Status GraphSet::launch_phases(const RoundGraphs &graphs, nextn_metrics *metrics, nextn_round_times *times) {
    NEXTN_RETURN_IF_ERROR(launch(graphs.verify, metrics, &times->verify_us));
    NEXTN_RETURN_IF_ERROR(launch(graphs.accept, metrics, &times->accept_us));
    NEXTN_RETURN_IF_ERROR(launch(graphs.extend, metrics, &times->extend_us));
    for (uint64_t step = 1; step < num_steps_; ++step) {
        NEXTN_RETURN_IF_ERROR(launch(graphs.step, metrics, &times->step_us));
    }
    times->graph_us = times->verify_us + times->accept_us + times->extend_us + times->step_us;
    return {};
}

Result<const int64_t *> GraphSet::results(const SessionMemory &memory) {
    return backend_->read_results(memory.result_block());
}

}  // namespace nextn
