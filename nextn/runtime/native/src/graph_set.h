#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend.h"
#include "model.h"
#include "session_memory.h"
#include "status.h"

namespace nextn::core {

/** Which graphs make up a round. */
enum class RoundMode { plain, fused, phases };

/** The graphs one session needs and no others, loaded and bound, with the launches counted and timed. */
class GraphSet {
  public:
    /** Loads what rounds of up to `max_live` rows need; `memory` must outlive the set. */
    static Result<GraphSet> load(const Model &model, std::unique_ptr<Backend> backend, SessionMemory *memory,
                                 RoundMode mode, int64_t max_live);

    /** Smallest batch size that holds `live` rows. */
    int64_t batch_for(size_t live) const;

    /** One prompt chunk; after the last one of a prompt the result block is current. */
    Status prefill(bool last_chunk, nextn_metrics *metrics);
    Status seed(nextn_metrics *metrics);
    /** After a round the result block is current. */
    Status round(int64_t batch, nextn_metrics *metrics, nextn_round_times *times);
    /** Makes the memory of a state buffer current. */
    Status read(const std::string &state);

  private:
    struct RoundGraphs {
        int64_t batch = 0;
        Graph *whole = nullptr; /**< `round` or `decode` */
        Graph *verify = nullptr;
        Graph *accept = nullptr;
        Graph *extend = nullptr;
        Graph *step = nullptr;
    };

    /** What a launch is waited for with. */
    enum class Wait { finished, results };

    /** A graph to load, and where it is wanted. */
    struct Wanted {
        const char *name;
        int64_t batch;
        Graph **graph;
    };

    std::vector<Wanted> wanted();
    Status load_wanted(const Model &model);
    Status tell_changes();
    Status launch(Graph *graph, Wait wait, nextn_metrics *metrics, float *microseconds);
    Status launch_phases(const RoundGraphs &graphs, nextn_metrics *metrics, nextn_round_times *times);

    RoundMode mode_ = RoundMode::fused;
    uint64_t num_steps_ = 0;
    SessionMemory *memory_ = nullptr;
    std::unique_ptr<Backend> backend_;
    Graph *prefill_ = nullptr;
    Graph *seed_ = nullptr;
    std::vector<RoundGraphs> rounds_;
};

}  // namespace nextn::core
