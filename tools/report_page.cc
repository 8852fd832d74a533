// SPDX-License-Identifier: Apache-2.0
#include "tools/report_page.h"

#include <string_view>

namespace narrowfloat::tools {
namespace {

// The policy prevents the page from loading anything, wherever it is opened.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>narrowfloat report</title>
<style>
:root { color-scheme: light dark; --line: #ccc; --bar: #2a6fb0; --soft: #f2f4f7; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444; --bar: #7ab3e8; --soft: #22262c; --page: #121212; }
}
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 84em; padding: 0 1em;
  background: var(--page); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .8em; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { white-space: pre-line; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
#tensors td.name { white-space: normal; overflow-wrap: anywhere; min-width: 16em; max-width: 36em; }
#what { overflow-wrap: anywhere; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid var(--bar); }
th[aria-sort=ascending] button::after { content: " \25b2"; }
th[aria-sort=descending] button::after { content: " \25bc"; }
tbody tr:hover { background: var(--soft); }
svg { height: 28px; width: 120px; fill: var(--bar); vertical-align: middle; }
label { margin-right: 1.5em; white-space: nowrap; }
.scroll { overflow-x: auto; }
.note { max-width: 60em; }
</style></head><body>
<h1>Quantization report</h1><p id="what"></p>
<h2>Schemes</h2><div class="scroll"><table id="schemes"></table></div>
<h2>Tensors</h2>
<p><label>Scheme <select id="scheme"></select></label>
<label>Name contains <input id="filter" type="search"></label></p>
<div class="scroll"><table id="tensors"></table></div>
<p id="more"></p>
<p class="note">SQNR: power of the values over power of their errors; &ndash; stands for no error.
SQNR and largest error are those of finite values; NaN, infinity changed: values that were NaN or
infinite and are not the same any more, or have become so.
Largest error: of a single value. Underflow: values that become zero. Saturation: codes of the
largest magnitude. Histograms count by power of two, without zeros; all of a column have one
axis.</p>
<script type="application/json" id="data">)";

constexpr std::string_view kTail = R"(</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const kRows = 500;  // that are drawn at first: a browser takes long over a million bars
const element = (tag, text) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  return made;
};
const number = (value, digits) => value === null ? "\u2013" : value.toFixed(digits);
const percent = value => value === null ? "\u2013" : value === 0 ? "0 %" :
  value < 1e-4 ? "< 0.01 %" : (100 * value).toFixed(2) + " %";
const size = bytes => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; bytes >= 999.5 && unit < 4; ++unit) bytes /= 1000;
  return (unit === 0 ? String(bytes) : bytes.toPrecision(3)) + " " + units[unit];
};
// The powers of two that a column of histograms spans.
const axis = all => {
  let low = Infinity, high = -Infinity;
  for (const bins of all) {
    for (const power of Object.keys(bins)) {
      low = Math.min(low, Number(power)); high = Math.max(high, Number(power));
    }
  }
  if (low > high) return {low: 0, high: 15};
  const spare = Math.max(0, 15 - (high - low));
  return {low: low - Math.ceil(spare / 2), high: high + Math.floor(spare / 2)};
};
const histogram = (bins, {low, high}) => {
  const ns = "http://www.w3.org/2000/svg", svg = document.createElementNS(ns, "svg");
  const counts = Object.entries(bins).map(([power, count]) => [Number(power), count]);
  if (counts.length === 0) return svg;
  const most = Math.max(...counts.map(pair => pair[1])), powers = counts.map(pair => pair[0]);
  svg.setAttribute("viewBox", `0 0 ${high - low + 1} 28`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const title = document.createElementNS(ns, "title");
  title.textContent = `2^${Math.min(...powers)} to 2^${Math.max(...powers) + 1}`;
  svg.append(title);
  for (const [power, count] of counts) {
    const bar = document.createElementNS(ns, "rect"), height = Math.max(1, 28 * count / most);
    bar.setAttribute("x", power - low); bar.setAttribute("y", 28 - height);
    bar.setAttribute("width", 0.9); bar.setAttribute("height", height);
    svg.append(bar);
  }
  return svg;
};
// Fills a table and sorts it by the column `order.by`, worst first, then the other way round.
const fill = (table, columns, rows, order, again) => {
  const head = element("tr"), body = element("tbody"), by = columns[order.by];
  columns.forEach((column, index) => {
    const cell = element("th"), button = element("button", column.name);
    cell.setAttribute("scope", "col");
    head.append(cell);
    if (column.draw) { cell.textContent = column.name; return; }
    if (index === order.by) cell.setAttribute("aria-sort", order.up ? "ascending" : "descending");
    button.onclick = () => {
      order.up = index === order.by ? !order.up : !column.worstIsLarge;
      order.by = index;
      again();
    };
    cell.append(button);
  });
  const compare = (a, b) => a === b ? 0 : a === null ? 1 : b === null ? -1 : a < b ? -1 : 1;
  const list = [...rows].sort((a, b) => (order.up ? 1 : -1) * compare(by.value(a), by.value(b)));
  for (const row of list.slice(0, order.rows)) {
    const line = element("tr");
    columns.forEach((column, index) => {
      const cell = element("td", column.draw ? undefined : column.text(row));
      if (column.draw) cell.append(column.draw(row));
      if (index === 0) cell.setAttribute("class", "name");
      line.append(cell);
    });
    body.append(line);
  }
  const top = element("thead");
  top.append(head);
  table.replaceChildren(top, body);
};
const column = (name, value, text, worstIsLarge) =>
  ({name, value, text: text ?? (row => String(value(row))), worstIsLarge});
const of = (row, scheme) => row.schemes.find(each => each.scheme === scheme);
document.getElementById("what").textContent =
  `${data.in}: ${data.tensors.length} of ${data.tensors_total} tensors would be quantized, ` +
  `${size(data.bytes_before)} before. Sizes are those of the whole checkpoint.`;
const schemes = {by: 3, up: false, rows: Infinity};
const showSchemes = () => fill(document.getElementById("schemes"), [
  column("scheme", row => row.scheme),
  column("size after", row => row.bytes_after, row => size(row.bytes_after), true),
  column("bits per parameter", row => row.bits_per_parameter,
         row => number(row.bits_per_parameter, 2), true),
  column("worst SQNR, dB", row => row.worst_sqnr_db, row => number(row.worst_sqnr_db, 2)),
  column("NaN, infinity changed", row => row.nonfinite_changed, undefined, true),
  column("tensors it cannot take", row => row.refused, undefined, true),
], data.schemes, schemes, showSchemes);
showSchemes();
const select = document.getElementById("scheme"), filter = document.getElementById("filter");
for (const scheme of data.schemes) select.append(element("option", scheme.scheme));
const values = axis(data.tensors.map(row => row.values));
const tensors = {by: 2, up: true, rows: kRows};
const show = () => {
  const scheme = select.value, text = filter.value ?? "";
  const rows = data.tensors.filter(row => of(row, scheme) && row.name.includes(text));
  const get = key => row => of(row, scheme)[key];
  const scales = axis(rows.map(get("scales")));
  const range = ({low, high}) => `2^${low} to 2^${high + 1}`;
  fill(document.getElementById("tensors"), [
    column("tensor", row => row.name),
    column("shape", row => row.shape.join("x")),
    column("SQNR, dB", get("sqnr_db"), row => number(get("sqnr_db")(row), 2)),
    column("largest error", get("largest_error"),
           row => get("largest_error")(row)?.toPrecision(3) ?? "\u2013", true),
    column("underflow", get("underflow"), row => percent(get("underflow")(row)), true),
    column("saturation", get("saturation"), row => percent(get("saturation")(row)), true),
    column("NaN, infinity changed", get("nonfinite_changed"), undefined, true),
    {name: "values\n" + range(values), draw: row => histogram(row.values, values)},
    {name: "scales\n" + range(scales), draw: row => histogram(get("scales")(row), scales)},
  ], rows, tensors, show);
  const more = document.getElementById("more");
  more.replaceChildren();
  if (rows.length <= tensors.rows) return;
  const button = element("button", "Show all");
  button.onclick = () => { tensors.rows = Infinity; show(); };
  more.append(`The first ${tensors.rows} of ${rows.length} tensors. `, button);
};
select.onchange = show;
filter.oninput = show;
show();
</script></body></html>
)";

}  // namespace

std::string ReportPage(const Json& report) {
  std::string page(kHead);
  // '<' could end the script element; in JSON it has an escape sequence.
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
