// A graph shared object with the AOTInductor C interface, whose model is a hash of the tokens so far instead
// of a network. One source serves every graph: its name and batch size come from the file's own name, such as
// round.b4.so. FAKE_FAULT=<graph>:<fault> makes one of them misbehave.

#include <dlfcn.h>
#include <libgen.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

struct AtenTensor;
extern "C" int32_t aoti_torch_get_data_ptr(AtenTensor *tensor, void **data);
extern "C" int fake_torch_threads();

namespace {

constexpr int64_t slots = 4, chunk = 8, control_width = 32, result_width = 16, window_rows = 9;

enum Control {
    pos,
    bonus,
    remaining,
    finished,
    step,
    seed,
    temperature,
    prompt_length = 10,
    eos = 11,
    draft = 19
};
enum ResultField { out = 0, out_count = 9, accepted = 10, result_finished = 11, result_pos = 12 };

struct Constant {
    std::string fqn;
    int32_t dtype;
    size_t bytes;
};

struct Container {
    std::string graph;
    int64_t batch;
    std::vector<Constant> constants;
    std::vector<std::string> names;
    std::map<std::string, void *> data;
};

thread_local char last_error[64];

bool has_fault(const Container &self, const char *fault) {
    const char *wanted = std::getenv("FAKE_FAULT");
    return wanted != nullptr && self.graph + ":" + fault == wanted;
}

int64_t *words(Container &self, const char *name) {
    return static_cast<int64_t *>(self.data.at(name));
}

// The model: what embed holds, a hash of the tokens run so far, and who is asking.
struct Row {
    const float *embed;
    int64_t *control;
    int64_t *history;

    int64_t vocab() const { return static_cast<int64_t>(embed[1]); }
    int64_t steps() const { return static_cast<int64_t>(embed[2]); }
    static int64_t mix(int64_t hash, int64_t token) { return (hash * 31 + token + 1) % 1000003; }
    int64_t draw(int64_t hash, int64_t position) const {
        const int64_t scale = static_cast<int64_t>(embed[0]);
        return (hash * scale + position + control[seed] + control[temperature]) % vocab();
    }
    bool is_eos(int64_t token) const {
        for (int i = 0; i < 8; ++i) {
            if (control[eos + i] == token) return true;
        }
        return false;
    }
    // A guess for the token at `position`, wrong at every third position.
    int64_t guess(int64_t hash, int64_t position) const {
        const int64_t token = draw(hash, position);
        return position % 3 == 0 ? (token + 1) % vocab() : token;
    }
};

Row row_of(Container &self, int64_t slot) {
    return {static_cast<float *>(self.data.at("embed")), words(self, "control") + slot * control_width,
            words(self, "history") + slot};
}

void emit(const Row &row, int64_t *result, const int64_t *tokens, int64_t count, int64_t matched) {
    if (count > row.control[remaining]) count = row.control[remaining];
    for (int64_t i = 0; i < count; ++i) {
        result[out + i] = tokens[i];
        if (row.is_eos(tokens[i])) count = i + 1;
    }
    row.control[remaining] -= count;
    row.control[bonus] = tokens[count - 1];
    row.control[finished] = row.control[remaining] == 0 || row.is_eos(tokens[count - 1]);
    result[out_count] = count;
    result[accepted] = matched;
    result[result_finished] = row.control[finished];
    result[result_pos] = row.control[pos];
}

void prefill(Container &self) {
    const int64_t slot = *words(self, "prompt_slot");
    const int64_t count = *words(self, "prompt_count");
    const Row row = row_of(self, slot);
    int64_t *const result = words(self, "result") + slot * result_width;
    if (row.control[pos] == 0) *row.history = 0;
    for (int64_t i = 0; i < count; ++i)
        *row.history = Row::mix(*row.history, words(self, "prompt_tokens")[i]);
    row.control[pos] += count;
    result[out_count] = 0;
    result[accepted] = -1;
    result[result_finished] = 0;
    if (row.control[pos] != row.control[prompt_length]) return;
    const int64_t token = row.draw(*row.history, row.control[pos]);
    emit(row, result, &token, 1, -1);
}

// Drafts number `first` and on, as far as the last step.
void make_drafts(const Row &row, int64_t first, int64_t end) {
    int64_t hash = Row::mix(*row.history, row.control[bonus]);
    for (int64_t i = 0; i < first; ++i) hash = Row::mix(hash, row.control[draft + i]);
    for (int64_t i = first; i < end; ++i) {
        row.control[draft + i] = row.guess(hash, row.control[pos] + 1 + i);
        hash = Row::mix(hash, row.control[draft + i]);
    }
    row.control[step] = end;
}

void verify(const Row &row, int64_t *window) {
    int64_t hash = Row::mix(*row.history, row.control[bonus]);
    for (int64_t i = 0; i <= row.steps(); ++i) {
        window[i] = row.draw(hash, row.control[pos] + 1 + i);
        hash = Row::mix(hash, row.control[draft + i]);
    }
}

void accept(const Row &row, const int64_t *window, int64_t matched_limit, int64_t *result) {
    int64_t matched = 0;
    while (matched < matched_limit && row.control[draft + matched] == window[matched]) ++matched;
    const int64_t previous = row.control[bonus];
    emit(row, result, window, matched + 1, matched);
    *row.history = Row::mix(*row.history, previous);
    for (int64_t i = 0; i + 1 < result[out_count]; ++i) *row.history = Row::mix(*row.history, window[i]);
    row.control[pos] += result[out_count];
    result[result_pos] = row.control[pos];
}

void replay_row(Container &self, int64_t slot) {
    const Row row = row_of(self, slot);
    int64_t *const window = words(self, "window") + slot * window_rows;
    int64_t *const result = words(self, "result") + slot * result_width;
    const std::string &graph = self.graph;
    if (graph == "accept" || graph == "round" || graph == "decode") {
        result[out_count] = 0;
        result[accepted] = -1;
        result[result_finished] = 1;
    }
    const bool done = row.control[finished] != 0;
    if (!done && (graph == "verify" || graph == "round" || graph == "decode")) verify(row, window);
    if (!done && (graph == "accept" || graph == "round")) accept(row, window, row.steps(), result);
    if (!done && graph == "decode") accept(row, window, 0, result);
    if (graph == "draft_extend" || graph == "round") make_drafts(row, 0, 1);
    if (graph == "round") make_drafts(row, 1, row.steps());
    if (graph == "draft_step") make_drafts(row, row.control[step], row.control[step] + 1);
    if (has_fault(self, "count")) result[out_count] = 99;
    if (has_fault(self, "token")) result[out] = -5;
    if (has_fault(self, "idle")) result[out_count] = 0;
}

void replay(Container &self) {
    if (fake_torch_threads() != 1) throw std::logic_error("launched with more than one thread");
    if (self.graph == "prefill") return prefill(self);
    if (self.graph == "seed") {
        const Row row = row_of(self, *words(self, "prompt_slot"));
        return make_drafts(row, 0, row.steps());
    }
    const std::string name = "slots_b" + std::to_string(self.batch);
    for (int64_t i = 0; i < self.batch; ++i) replay_row(self, words(self, name.c_str())[i]);
}

Container *make_container() {
    Dl_info info;
    dladdr(reinterpret_cast<void *>(&make_container), &info);
    std::string path = info.dli_fname;
    const std::string file = basename(path.data());
    auto *self = new Container;
    self->graph = file.substr(0, file.find('.'));
    self->batch = std::stoll(file.substr(file.find(".b") + 2));
    constexpr int32_t int64_dtype = 4;
    self->constants = {{"model.embed", 6, 3 * 4},
                       {"state.control", int64_dtype, (slots + 1) * control_width * 8},
                       {"state.result", int64_dtype, (slots + 1) * result_width * 8},
                       {"state.history", int64_dtype, (slots + 1) * 8},
                       {"state.window", int64_dtype, (slots + 1) * window_rows * 8}};
    if (self->graph == "prefill" || self->graph == "seed") {
        self->constants.push_back({"state.prompt_slot", int64_dtype, 8});
        self->constants.push_back({"state.prompt_tokens", int64_dtype, chunk * 8});
        self->constants.push_back({"state.prompt_count", int64_dtype, 8});
    } else {
        const auto bytes = static_cast<size_t>(self->batch * 8);
        self->constants.push_back({"state.slots_b" + std::to_string(self->batch), int64_dtype, bytes});
    }
    if (has_fault(*self, "dtype")) self->constants[1].dtype = 6;
    if (has_fault(*self, "bytes")) self->constants[1].bytes += 64;
    if (has_fault(*self, "unknown")) self->constants.push_back({"model.unheard_of", 6, 4});
    if (has_fault(*self, "folded")) self->constants.pop_back();
    for (Constant &constant : self->constants) {
        constant.bytes = (constant.bytes + 63) / 64 * 64;  // as the real ones record it
        std::string name = constant.fqn;
        name[name.find('.')] = '_';
        self->names.push_back(name);
    }
    return self;
}

int32_t fail(const char *text) {
    std::snprintf(last_error, sizeof last_error, "%s", text);
    return 1;
}

}  // namespace

extern "C" {

struct Pair {
    const char *name;
    AtenTensor *tensor;
};

int32_t AOTInductorModelContainerCreateWithDevice(Container **self, size_t, const char *, const char *) {
    *self = make_container();
    if (!has_fault(**self, "create")) return 0;
    delete *self;
    *self = nullptr;
    return fail("injected create fault");
}

int32_t AOTInductorModelContainerDelete(Container *self) {
    delete self;
    return 0;
}

int32_t AOTInductorModelContainerRunSingleThreaded(Container *self, AtenTensor **, size_t, AtenTensor **,
                                                   size_t, void *, void *) {
    if (has_fault(*self, "run")) return fail("injected run fault");
    if (has_fault(*self, "throw")) throw std::runtime_error("injected exception");
    replay(*self);
    return 0;
}

int32_t AOTInductorModelContainerGetNumInputs(Container *self, size_t *count) {
    *count = has_fault(*self, "inputs") ? 1 : 0;
    return 0;
}

int32_t AOTInductorModelContainerGetNumOutputs(Container *, size_t *count) {
    *count = 0;
    return 0;
}

int32_t AOTInductorModelContainerGetNumConstants(Container *self, size_t *count) {
    *count = self->constants.size();
    return 0;
}

int32_t AOTInductorModelContainerGetConstantName(Container *self, size_t index, const char **name) {
    *name = self->names[index].c_str();
    return 0;
}

int32_t AOTInductorModelContainerGetConstantOriginalFQN(Container *self, size_t index, const char **fqn) {
    *fqn = self->constants[index].fqn.c_str();
    return 0;
}

int32_t AOTInductorModelContainerGetConstantFromFolded(Container *, size_t, bool *folded) {
    *folded = false;
    return 0;
}

int32_t AOTInductorModelContainerGetConstantDtype(Container *self, size_t index, int32_t *dtype) {
    *dtype = self->constants[index].dtype;
    return 0;
}

int32_t AOTInductorModelContainerGetConstantDataSize(Container *self, size_t index, size_t *bytes) {
    *bytes = self->constants[index].bytes;
    return 0;
}

int32_t AOTInductorModelContainerUpdateUserManagedConstantBufferPairs(Container *self, const Pair *pairs,
                                                                      size_t count, bool, bool) {
    for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < self->names.size(); ++j) {
            if (self->names[j] != pairs[i].name) continue;
            const std::string name = self->constants[j].fqn.substr(self->constants[j].fqn.find('.') + 1);
            aoti_torch_get_data_ptr(pairs[i].tensor, &self->data[name]);
        }
    }
    return count == self->constants.size() ? 0 : fail("some constants are missing");
}

int32_t AOTInductorGetLastError(const char **text) {
    *text = last_error;
    return 0;
}

}  // extern "C"
