// What a ge::Graph holds: the bytes torchair handed over.

#pragma once

#include <graph/graph.h>

#include <string>

namespace ge {

class GraphImpl {
  public:
    std::string name;
    /** A serialized ge.proto.ModelDef. */
    std::string model;
};

}  // namespace ge

namespace fake_cann {

/** Gives the friend access that the headers leave to GE. */
const std::string &model_of(const ge::Graph &graph);

}  // namespace fake_cann
