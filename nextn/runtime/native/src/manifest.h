#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "status.h"
#include "tensor.h"

namespace nextn::core {

/** The format of an artifact's graphs: AOTInductor libraries, GE IR, what CANN's compiler makes of it, or one
 * that an executor runs. */
enum class Emit { aoti, air, om, other };

/** Names of the manifest's `requires` that libnextn itself provides for. */
constexpr const char *libtorch = "libtorch";
constexpr const char *op_library = "libnextn_ops";
constexpr const char *ascendcl = "libascendcl";

struct GraphInfo {
    std::string name;
    int64_t batch = 0;
    /** The state buffer whose rows are the only output of an `air` or `om` graph; empty for other formats. */
    std::string returns;
    std::string file;
    std::string sha256;
    int64_t bytes = 0;
    std::vector<TensorInfo> tensors;

    std::string key() const { return concat(name, ".b", batch); }
};

struct StateInfo {
    std::string name;
    int64_t rows_per_slot = 0;
    int64_t row_width = 0;
    DType dtype = DType::float32;
};

struct WeightsInfo {
    std::string file;
    int64_t bytes = 0;
    int64_t header_bytes = 0;
    std::string header_sha256;
    std::string body_sha256;
    std::vector<std::string> names;
};

/** `manifest.json` after every check that needs no other file. */
struct Manifest {
    std::string path;
    std::string text;

    std::string torch_version;
    Emit emit = Emit::aoti;
    std::string emit_name;
    std::vector<std::string> isa;
    /** What replay needs, by the names of the manifest's `requires`. */
    std::vector<std::string> required;
    int64_t vocab_size = 0;
    std::vector<int64_t> eos_token_ids;
    int64_t num_steps = 0;
    int64_t max_seq_len = 0;
    int64_t prefill_chunk = 0;
    std::vector<int64_t> batch_sizes;
    int64_t slots = 0;
    std::vector<StateInfo> state;
    std::vector<TensorInfo> inputs;
    std::vector<GraphInfo> graphs;
    WeightsInfo weights;

    static Result<Manifest> read(const std::string &directory);

    /** The state buffers as graphs bind them, `[(slots + 1) * rows_per_slot, row_width]`. */
    std::vector<TensorInfo> state_tensors() const;
    const GraphInfo *find_graph(const std::string &name, int64_t batch) const;
    bool requires_library(const char *name) const;
};

std::string slots_input(int64_t batch);

/** Checks that the tables agree with each other and with the protocol this library was compiled for. */
Status check_tables(const Manifest &manifest);

}  // namespace nextn::core
