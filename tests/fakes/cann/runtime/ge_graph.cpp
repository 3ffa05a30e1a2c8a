// ge::Graph and the operator registry.

#include "ge_graph.h"

#include <graph/operator_factory.h>

#include <fstream>
#include <map>
#include <utility>

#include "ir_attributes.h"
#include "log.h"
#include "model_def.h"
#include "settings.h"

namespace ge {

class GraphUtils {
  public:
    static const std::string &model(const Graph &graph) {
        static const std::string none;
        return graph.impl_ == nullptr ? none : graph.impl_->model;
    }
};

Graph::Graph(const char_t *name) : impl_(std::make_shared<GraphImpl>()) {
    impl_->name = name;
}

graphStatus Graph::LoadFromSerializedModelArray(const void *model, size_t bytes) {
    if (impl_ == nullptr) impl_ = std::make_shared<GraphImpl>();
    impl_->model.assign(static_cast<const char *>(model), bytes);
    fake_cann::Entry entry{"graph", "parse"};
    entry.bytes = bytes;
    entry.tasks = fake_cann::read_model_def(impl_->model).num_ops;
    fake_cann::note(std::move(entry));
    return GRAPH_SUCCESS;
}

graphStatus Graph::CopyFrom(const Graph &other) {
    if (other.impl_ == nullptr) return GRAPH_FAILED;
    impl_ = std::make_shared<GraphImpl>(*other.impl_);
    return GRAPH_SUCCESS;
}

// GE writes a form of its own; these bytes are what it was given, for `ge_ir_pb2.ModelDef` to read.
graphStatus Graph::SaveToFile(const char_t *path) const {
    std::ofstream file(path, std::ios::binary);
    file << fake_cann::model_of(*this);
    file.close();
    fake_cann::note({"graph", "save", path});
    return file ? GRAPH_SUCCESS : GRAPH_FAILED;
}

// torchair looks through the nodes for one kind of operator that needs another way to run; we have none.
std::vector<GNode> Graph::GetAllNodes() const {
    return {};
}

graphStatus GNode::GetType(AscendString &) const {
    return GRAPH_FAILED;
}

graphStatus Operator::UpdateInputDesc(const char_t *, const TensorDesc &) {
    return GRAPH_SUCCESS;
}

// Which attributes an operator has is not known here: every one that torchair asks any operator for passes.
graphStatus Operator::GetAllIrAttrNamesAndTypes(std::map<AscendString, AscendString> &types) const {
    for (const char *const *name = fake_cann::ir_attributes; *name != nullptr; ++name)
        types.emplace(*name, "");
    return GRAPH_SUCCESS;
}

Operator OperatorFactory::CreateOperator(const char_t *, const char_t *) {
    return {};
}

// Which operators a CANN has is not known here: a graph with an unknown one passes.
bool OperatorFactory::IsExistOp(const char_t *) {
    return true;
}

}  // namespace ge

const std::string &fake_cann::model_of(const ge::Graph &graph) {
    return ge::GraphUtils::model(graph);
}

using NamedTexts = std::vector<std::pair<ge::AscendString, ge::AscendString>>;

/** Asked before an operator is built that torchair has no Python class for; 0 is "registered". */
extern "C" uint32_t GetRegisteredIrDef(const char *type, NamedTexts &, NamedTexts &, NamedTexts &) {
    return fake_cann::is_custom_op(type) ? 0 : 1;
}
