// SPDX-License-Identifier: Apache-2.0
#include "tools/report_page.h"

#include <string_view>

namespace narrowfloat::tools {
namespace {

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>narrowfloat report</title>
<style>
:root { color-scheme: light dark; --line: #ccc; --bar: #2a6fb0; --soft: #f2f4f7; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --bar: #7ab3e8; --soft: #22262c; } }
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .6em; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--bar); }
th[aria-sort=ascending] button::after { content: " \25b2"; }
th[aria-sort=descending] button::after { content: " \25bc"; }
tbody tr:hover { background: var(--soft); }
svg { height: 28px; width: 120px; fill: var(--bar); vertical-align: middle; }
.scroll { overflow-x: auto; }
</style></head><body>
<h1>Quantization report</h1><p id="what"></p>
<h2>Schemes</h2><div class="scroll"><table id="schemes"></table></div>
<h2>Tensors</h2><p><label>Scheme <select id="scheme"></select></label></p>
<div class="scroll"><table id="tensors"></table></div>
<p>SQNR: power of the values over power of their errors. Underflow: values that become zero.
Saturation: codes of the largest magnitude. Histograms count by power of two, without zeros.</p>
<script type="application/json" id="data">)";

constexpr std::string_view kTail = R"(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const element = (tag, text) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  return made;
};
const number = (value, digits) => value === null ? "\u2013" : value.toFixed(digits);
const percent = value => value === null ? "\u2013" : (100 * value).toPrecision(3) + " %";
const histogram = bins => {
  const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
  const counts = Object.entries(bins).map(([power, count]) => [Number(power), count]);
  if (counts.length === 0) return svg;
  const low = Math.min(...counts.map(pair => pair[0])), high = Math.max(...counts.map(pair => pair[0]));
  const most = Math.max(...counts.map(pair => pair[1]));
  svg.setAttribute("viewBox", `0 0 ${high - low + 1} 28`);
  svg.setAttribute("preserveAspectRatio", "none");
  const title = document.createElementNS(ns, "title");
  title.textContent = `2^${low} to 2^${high + 1}`;
  svg.append(title);
  for (const [power, count] of counts) {
    const bar = document.createElementNS(ns, "rect"), height = Math.max(1, 28 * count / most);
    bar.setAttribute("x", power - low); bar.setAttribute("y", 28 - height);
    bar.setAttribute("width", 0.9); bar.setAttribute("height", height);
    svg.append(bar);
  }
  return svg;
};
const fill = (table, columns, rows, sorted, ascending) => {
  const head = element("tr"), body = element("tbody");
  columns.forEach((column, index) => {
    const cell = element("th"), button = element("button", column.name);
    if (column.draw) { cell.textContent = column.name; head.append(cell); return; }
    if (index === sorted) cell.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    button.onclick = () => fill(table, columns, rows, index, index === sorted ? !ascending : true);
    cell.append(button); head.append(cell);
  });
  const key = row => columns[sorted].value(row);
  const order = (a, b) => a === b ? 0 : a === null ? 1 : b === null ? -1 : a < b ? -1 : 1;
  const list = [...rows].sort((a, b) => (ascending ? 1 : -1) * order(key(a), key(b)));
  for (const row of list) {
    const line = element("tr");
    for (const column of columns) {
      const cell = element("td", column.draw ? undefined : column.text(row));
      if (column.draw) cell.append(column.draw(row));
      line.append(cell);
    }
    body.append(line);
  }
  const top = element("thead");
  top.append(head);
  table.replaceChildren(top, body);
};
const column = (name, value, text) => ({name, value, text: text ?? (row => String(value(row)))});
const of = (row, scheme) => row.schemes.find(each => each.scheme === scheme);
document.getElementById("what").textContent =
  `${data.in}: ${data.tensors.length} of ${data.tensors_total} tensors would be quantized, ` +
  `${(data.bytes_before / 1e6).toPrecision(4)} MB before, sizes of the whole checkpoint below.`;
fill(document.getElementById("schemes"), [
  column("scheme", row => row.scheme),
  column("MB after", row => row.bytes_after, row => (row.bytes_after / 1e6).toPrecision(4)),
  column("bits per parameter", row => row.bits_per_parameter, row => number(row.bits_per_parameter, 2)),
  column("worst SQNR, dB", row => row.worst_sqnr_db, row => number(row.worst_sqnr_db, 2)),
  column("tensors it cannot take", row => row.refused),
], data.schemes, 3, false);
const select = document.getElementById("scheme");
for (const scheme of data.schemes) select.append(element("option", scheme.scheme));
const show = () => {
  const scheme = select.value, rows = data.tensors.filter(row => of(row, scheme));
  const get = key => row => of(row, scheme)[key];
  fill(document.getElementById("tensors"), [
    column("tensor", row => row.name),
    column("shape", row => row.shape.join("x")),
    column("SQNR, dB", get("sqnr_db"), row => number(get("sqnr_db")(row), 2)),
    column("largest error", get("largest_error"), row => get("largest_error")(row)?.toPrecision(3) ?? "\u2013"),
    column("underflow", get("underflow"), row => percent(get("underflow")(row))),
    column("saturation", get("saturation"), row => percent(get("saturation")(row))),
    {name: "values", draw: row => histogram(row.values)},
    {name: "scales", draw: row => histogram(get("scales")(row))},
  ], rows, 2, true);
};
select.onchange = show;
show();
</script></body></html>
)";

}  // namespace

std::string ReportPage(const Json& report) {
  std::string page(kHead);
  // '<' could end the script element; JSON has another spelling for it.
  for (const char c : report.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<') {
      page += "\\u003c";
    } else {
      page += c;
    }
  }
  return page.append(kTail);
}

}  // namespace narrowfloat::tools
