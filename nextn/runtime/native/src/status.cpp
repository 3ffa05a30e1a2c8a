#include "status.h"

namespace nextn::core {

std::string printable(const std::string &text, size_t limit) {
    std::string result = text.substr(0, limit);
    for (char &c : result) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    }
    if (text.size() > limit) result += "...";
    return result;
}

}  // namespace nextn::core
