#include "graph_set.h"

#include <algorithm>
#include <utility>

namespace nextn::core {
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
    for (const int64_t batch : model.manifest().batch_sizes) {
        set.rounds_.emplace_back().batch = batch;
        if (batch >= max_live) break;
    }
    NEXTN_RETURN_IF_ERROR(set.load_wanted(model));
    return set;
}

std::vector<GraphSet::Wanted> GraphSet::wanted() {
    std::vector<Wanted> list = {{"prefill", 1, &prefill_}};
    if (mode_ != RoundMode::plain) list.push_back({"seed", 1, &seed_});
    for (RoundGraphs &graphs : rounds_) {
        if (mode_ != RoundMode::phases) {
            list.push_back({mode_ == RoundMode::fused ? "round" : "decode", graphs.batch, &graphs.whole});
            continue;
        }
        list.push_back({"verify", graphs.batch, &graphs.verify});
        list.push_back({"accept", graphs.batch, &graphs.accept});
        list.push_back({"draft_extend", graphs.batch, &graphs.extend});
        if (num_steps_ > 1) list.push_back({"draft_step", graphs.batch, &graphs.step});
    }
    return list;
}

Status GraphSet::load_wanted(const Model &model) {
    const std::vector<Wanted> list = wanted();
    std::vector<GraphFile> files;
    for (const Wanted &graph : list) {
        const GraphInfo *info = model.manifest().find_graph(graph.name, graph.batch);
        if (info == nullptr) {
            return artifact_error("missing graph")
                .file(model.manifest().path)
                .key("graphs")
                .expected(concat(graph.name, ".b", graph.batch))
                .found("none");
        }
        files.push_back({info, model.graph_path(*info)});
    }
    const Result<std::vector<Graph *>> loaded = backend_->load(files);
    NEXTN_RETURN_IF_ERROR(loaded);
    for (size_t i = 0; i < list.size(); ++i) *list[i].graph = (*loaded)[i];
    return {};
}

int64_t GraphSet::batch_for(size_t live) const {
    const auto place = std::find_if(rounds_.begin(), rounds_.end(), [&](const RoundGraphs &graphs) {
        return graphs.batch >= static_cast<int64_t>(live);
    });
    return place == rounds_.end() ? rounds_.back().batch : place->batch;
}

Status GraphSet::tell_changes() {
    for (const HostWrite &change : memory_->changes()) NEXTN_RETURN_IF_ERROR(backend_->write(change));
    memory_->forget_changes();
    return {};
}

Status GraphSet::read(const std::string &state) {
    // A device's copy without what the host wrote would overwrite it.
    NEXTN_RETURN_IF_ERROR(tell_changes());
    return backend_->read(state);
}

Status GraphSet::launch(Graph *graph, Wait wait, nextn_metrics *metrics, float *microseconds) {
    const Clock::time_point start = Clock::now();
    NEXTN_RETURN_IF_ERROR(tell_changes());
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

}  // namespace nextn::core
