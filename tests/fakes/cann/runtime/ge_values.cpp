// ge::AscendString, Shape, TensorDesc and Tensor, as far as torchair uses them. The classes are those of the
// wheel's own headers; only what they keep inside is ours.

#include <graph/tensor.h>

#include <cstring>
#include <utility>

namespace ge {

class ShapeImpl {
  public:
    std::vector<int64_t> dims;
};

class TensorDescImpl {
  public:
    std::vector<int64_t> dims;
    std::vector<int64_t> origin_dims;
    Format format = FORMAT_ND;
    Format origin_format = FORMAT_ND;
    DataType dtype = DT_FLOAT;
    Placement placement = kPlacementHost;
};

class TensorImpl {
  public:
    ~TensorImpl() {
        if (destroy && data != nullptr) destroy(data);
    }

    /** The description's fields are set one by one through the tensor, so it is kept apart from TensorDesc.
     */
    TensorDescImpl description;
    uint8_t *data = nullptr;
    size_t bytes = 0;
    Tensor::DeleteFunc destroy;
};

AscendString::AscendString(const char_t *const text)
    : name_(std::make_shared<std::string>(text == nullptr ? "" : text)) {}

AscendString::AscendString(const char_t *const text, size_t length)
    : name_(std::make_shared<std::string>(text, length)) {}

const char_t *AscendString::GetString() const {
    return name_ == nullptr ? "" : name_->c_str();
}

size_t AscendString::GetLength() const {
    return name_ == nullptr ? 0 : name_->size();
}

bool AscendString::operator<(const AscendString &other) const {
    return std::strcmp(GetString(), other.GetString()) < 0;
}

bool AscendString::operator==(const AscendString &other) const {
    return std::strcmp(GetString(), other.GetString()) == 0;
}

const char_t *GetFormatName(Format) {
    return "ND";
}

Shape::Shape(const std::vector<int64_t> &dims) : impl_(std::make_shared<ShapeImpl>()) {
    impl_->dims = dims;
}

std::vector<int64_t> Shape::GetDims() const {
    return impl_ == nullptr ? std::vector<int64_t>() : impl_->dims;
}

TensorDesc::TensorDesc() : impl(std::make_shared<TensorDescImpl>()) {}

// Only for returning one by value: a copy shares its contents.
TensorDesc::TensorDesc(const TensorDesc &) = default;

Shape TensorDesc::GetShape() const {
    return Shape(impl->dims);
}

Format TensorDesc::GetFormat() const {
    return impl->format;
}

void TensorDesc::SetFormat(Format format) {
    impl->format = format;
}

void TensorDesc::SetOriginShape(const Shape &shape) {
    impl->origin_dims = shape.GetDims();
}

void TensorDesc::SetOriginFormat(Format format) {
    impl->origin_format = format;
}

DataType TensorDesc::GetDataType() const {
    return impl->dtype;
}

void TensorDesc::SetDataType(DataType dtype) {
    impl->dtype = dtype;
}

void TensorDesc::SetPlacement(Placement placement) {
    impl->placement = placement;
}

Placement TensorDesc::GetPlacement() const {
    return impl->placement;
}

/** Lets Tensor build and read a TensorDesc whole; the headers name this friend and leave it to GE. */
class TensorAdapter {
  public:
    static TensorDesc wrap(const TensorDescImpl &description) {
        TensorDesc result;
        *result.impl = description;
        return result;
    }

    static const TensorDescImpl &unwrap(const TensorDesc &description) { return *description.impl; }
};

Tensor::Tensor() : impl(std::make_shared<TensorImpl>()) {}

TensorDesc Tensor::GetTensorDesc() const {
    return TensorAdapter::wrap(impl->description);
}

graphStatus Tensor::SetTensorDesc(const TensorDesc &description) {
    impl->description = TensorAdapter::unwrap(description);
    return GRAPH_SUCCESS;
}

const uint8_t *Tensor::GetData() const {
    return impl->data;
}

uint8_t *Tensor::GetData() {
    return impl->data;
}

size_t Tensor::GetSize() const {
    return impl->bytes;
}

std::unique_ptr<uint8_t[], Tensor::DeleteFunc> Tensor::ResetData() {
    const auto keep = [](uint8_t *) {};
    DeleteFunc destroy = impl->destroy ? std::move(impl->destroy) : DeleteFunc(keep);
    impl->bytes = 0;
    return {std::exchange(impl->data, nullptr), std::move(destroy)};
}

graphStatus Tensor::SetData(uint8_t *data, size_t bytes, const DeleteFunc &destroy) {
    if (impl->destroy && impl->data != nullptr && impl->data != data) impl->destroy(impl->data);
    impl->data = data;
    impl->bytes = bytes;
    impl->destroy = destroy;
    return GRAPH_SUCCESS;
}

graphStatus Tensor::ResetData(uint8_t *data, size_t bytes, const DeleteFunc &destroy) {
    return SetData(data, bytes, destroy);
}

graphStatus Tensor::SetOriginShapeDimNum(const size_t count) {
    impl->description.origin_dims.resize(count);
    return GRAPH_SUCCESS;
}

size_t Tensor::GetOriginShapeDimNum() const {
    return impl->description.origin_dims.size();
}

graphStatus Tensor::SetOriginShapeDim(const size_t index, const int64_t value) {
    if (index >= impl->description.origin_dims.size()) return GRAPH_FAILED;
    impl->description.origin_dims[index] = value;
    return GRAPH_SUCCESS;
}

graphStatus Tensor::SetShapeDimNum(const size_t count) {
    impl->description.dims.resize(count);
    return GRAPH_SUCCESS;
}

size_t Tensor::GetShapeDimNum() const {
    return impl->description.dims.size();
}

graphStatus Tensor::SetShapeDim(const size_t index, const int64_t value) {
    if (index >= impl->description.dims.size()) return GRAPH_FAILED;
    impl->description.dims[index] = value;
    return GRAPH_SUCCESS;
}

int64_t Tensor::GetShapeDim(const size_t index) const {
    return index < impl->description.dims.size() ? impl->description.dims[index] : 0;
}

graphStatus Tensor::SetFormat(const Format &format) {
    impl->description.format = format;
    return GRAPH_SUCCESS;
}

Format Tensor::GetFormat() const {
    return impl->description.format;
}

graphStatus Tensor::SetDataType(const DataType &dtype) {
    impl->description.dtype = dtype;
    return GRAPH_SUCCESS;
}

DataType Tensor::GetDataType() const {
    return impl->description.dtype;
}

graphStatus Tensor::SetPlacement(const Placement &placement) {
    impl->description.placement = placement;
    return GRAPH_SUCCESS;
}

Placement Tensor::GetPlacement() const {
    return impl->description.placement;
}

}  // namespace ge
