// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace narrowfloat::tools {

/// "90.9 MB": decimal units, three digits.
std::string BytesText(double bytes);

/// "0:07", "1:02:03".
std::string DurationText(double seconds);

/// Columns lined up with two spaces between them; the first row is the heading. Columns listed in
/// `right` are flush right.
std::string TableText(const std::vector<std::vector<std::string>>& rows,
                      const std::vector<std::size_t>& right);

}  // namespace narrowfloat::tools
