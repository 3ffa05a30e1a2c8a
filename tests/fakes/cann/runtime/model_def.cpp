#include "model_def.h"

#include <graph/types.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "wire.h"

namespace fake_cann {
namespace {

// Field numbers of ge_ir.proto, which torch_npu has compiled as torchair/_ge_concrete_graph/ge_ir_pb2.py.
enum ModelField { model_graph = 7 };
enum GraphField { graph_op = 6 };
enum OpField { op_name = 1, op_type = 2, op_attr = 10, op_input_desc = 33, op_output_desc = 34 };
enum AttrEntryField { entry_key = 1, entry_value = 2 };
enum AttrField { attr_int = 3 };
enum TensorField { tensor_dtype = 2, tensor_shape = 3 };
enum ShapeField { shape_dim = 1 };

// ge_ir.proto numbers its types in another order than ge::DataType; the position here is its number.
constexpr std::array<ge::DataType, 41> dtype_of_proto = {
    ge::DT_UNDEFINED,      ge::DT_FLOAT,       ge::DT_FLOAT16,     ge::DT_INT8,        ge::DT_UINT8,
    ge::DT_INT16,          ge::DT_UINT16,      ge::DT_INT32,       ge::DT_INT64,       ge::DT_UINT32,
    ge::DT_UINT64,         ge::DT_BOOL,        ge::DT_DOUBLE,      ge::DT_STRING,      ge::DT_DUAL_SUB_INT8,
    ge::DT_DUAL_SUB_UINT8, ge::DT_COMPLEX64,   ge::DT_COMPLEX128,  ge::DT_QINT8,       ge::DT_QINT16,
    ge::DT_QINT32,         ge::DT_QUINT8,      ge::DT_QUINT16,     ge::DT_RESOURCE,    ge::DT_STRING_REF,
    ge::DT_DUAL,           ge::DT_VARIANT,     ge::DT_BF16,        ge::DT_INT4,        ge::DT_UINT1,
    ge::DT_INT2,           ge::DT_UINT2,       ge::DT_COMPLEX32,   ge::DT_HIFLOAT8,    ge::DT_FLOAT8_E5M2,
    ge::DT_FLOAT8_E4M3FN,  ge::DT_FLOAT8_E8M0, ge::DT_FLOAT6_E3M2, ge::DT_FLOAT6_E2M3, ge::DT_FLOAT4_E2M1,
    ge::DT_FLOAT4_E1M2};

struct Op {
    std::string name;
    std::string type;
    int64_t index = 0;
    std::vector<ModelTensor> inputs;
    std::vector<ModelTensor> outputs;
};

std::vector<int64_t> read_dims(WireReader shape) {
    std::vector<int64_t> dims;
    while (const auto field = shape.next()) {
        if (field->number != shape_dim) continue;
        if (!field->is_message()) {
            dims.push_back(static_cast<int64_t>(field->value));
            continue;
        }
        WireReader packed = field->message();
        while (!packed.at_end()) dims.push_back(static_cast<int64_t>(packed.varint()));
    }
    return dims;
}

ModelTensor read_tensor(WireReader descriptor) {
    ModelTensor tensor;
    uint64_t dtype = 0;
    while (const auto field = descriptor.next()) {
        if (field->number == tensor_dtype) dtype = field->value;
        if (field->number == tensor_shape && field->is_message()) tensor.dims = read_dims(field->message());
    }
    tensor.dtype = dtype < dtype_of_proto.size() ? dtype_of_proto[dtype] : ge::DT_UNDEFINED;
    return tensor;
}

/** The integer under `key` if this entry of an attribute map is that; else `otherwise`. */
int64_t read_int_attr(WireReader entry, const std::string &key, int64_t otherwise) {
    bool matches = false;
    while (const auto field = entry.next()) {
        if (field->number == entry_key) matches = field->text() == key;
        if (field->number != entry_value || !matches || !field->is_message()) continue;
        WireReader value = field->message();
        while (const auto inner = value.next()) {
            if (inner->number == attr_int && !inner->is_message()) otherwise = inner->value;
        }
    }
    return otherwise;
}

Op read_op(WireReader definition) {
    Op op;
    while (const auto field = definition.next()) {
        if (!field->is_message()) continue;
        if (field->number == op_name) op.name = field->text();
        if (field->number == op_type) op.type = field->text();
        if (field->number == op_attr) op.index = read_int_attr(field->message(), "index", op.index);
        if (field->number == op_input_desc) op.inputs.push_back(read_tensor(field->message()));
        if (field->number == op_output_desc) op.outputs.push_back(read_tensor(field->message()));
    }
    return op;
}

std::vector<Op> read_graph(WireReader graph) {
    std::vector<Op> ops;
    while (const auto field = graph.next()) {
        if (field->number == graph_op && field->is_message()) ops.push_back(read_op(field->message()));
    }
    return ops;
}

ModelDef describe(std::vector<Op> ops) {
    ModelDef model;
    model.num_ops = ops.size();
    // Inputs are bound by the attribute "index", in whatever order the nodes were written.
    std::stable_sort(ops.begin(), ops.end(), [](const Op &a, const Op &b) { return a.index < b.index; });
    for (Op &op : ops) {
        if ((op.type == "Data" || op.type == "RefData") && !op.outputs.empty()) {
            op.outputs[0].name = op.name;
            model.inputs.push_back(std::move(op.outputs[0]));
        } else if (op.type == "NetOutput") {
            model.has_outputs = true;
            model.outputs = std::move(op.inputs);
        }
    }
    for (size_t i = 0; i < model.outputs.size(); ++i) model.outputs[i].name = "output_" + std::to_string(i);
    return model;
}

}  // namespace

size_t ModelTensor::bytes() const {
    const int size = ge::GetSizeByDataType(static_cast<ge::DataType>(dtype));
    if (size <= 0) return 0;
    size_t count = 1;
    for (const int64_t dim : dims) count *= static_cast<size_t>(std::max<int64_t>(dim, 0));
    if (size < ge::kDataTypeSizeBitOffset) return count * size;
    const size_t bits = size - ge::kDataTypeSizeBitOffset;
    return (count * bits + 7) / 8;
}

ModelDef read_model_def(const std::string &bytes) {
    WireReader model(bytes);
    std::vector<Op> ops;
    // The first graph is the main one; others would be subgraphs of control flow.
    while (const auto field = model.next()) {
        if (field->number != model_graph || !field->is_message()) continue;
        ops = read_graph(field->message());
        break;
    }
    return describe(std::move(ops));
}

}  // namespace fake_cann
