// Tables: sorted by a click on a head, copied as Markdown, saved as CSV.
const textOf = (field) => field.innerText.replace(/\s+/g, " ").trim();

const makeSortable = (table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = html("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const key = (row) => row.cells[column].dataset.order;
      const compare = (a, b) => {
        const [x, y] = [key(a), key(b)];
        // What is not known comes last in either order.
        if (x === undefined && y === undefined) return textOf(a.cells[column]).localeCompare(textOf(b.cells[column]), "en", { numeric: true }) * (down ? -1 : 1);
        if (x === undefined || y === undefined) return x === undefined ? 1 : -1;
        const [p, q] = [Number(x), Number(y)];
        return p === q ? 0 : (p - q) * (down ? -1 : 1);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
};

const setNumber = (field, value, text) => {
  field.textContent = text;
  if (known(value)) field.dataset.order = value; else delete field.dataset.order;
};

// A field of Markdown: signs that would end the field or start markup stand for themselves.
const markdownField = (text) => text.replace(/\s+/g, " ").replace(/[\\`*_|<>[\]]/g, "\\$&").replace(/&/g, "&amp;");
const markdownTable = (table) => {
  const isNumber = [...table.tHead.rows[0].cells].map((head) => head.classList.contains("num"));
  const line = (fields) => `| ${fields.join(" | ")} |`;
  const rows = [...table.tBodies[0].rows].map((row) => line([...row.cells].map((field) => markdownField(textOf(field)))));
  return [line([...table.tHead.rows[0].cells].map((head) => markdownField(textOf(head)))),
    line(isNumber.map((number) => (number ? "---:" : ":---"))), ...rows].join("\n");
};

// A field of CSV. A spreadsheet would take a text that begins like a formula for one.
const csvField = (value) => {
  if (!known(value) && typeof value !== "string") return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
};

const levelsAsCsv = (slo) => {
  const spread = ["mean", "p50", "p90", "p99", "max", "worst10"];
  const metrics = ["ttft", "tpot", "itl", "e2e"];
  const head = ["run", "engine", "mode", "load", "duration_s", "completed", "failed", "output_tokens_per_s", "requests_per_s",
    "slo_ttft_ms", "slo_tpot_ms", "slo_attainment", "goodput_requests_per_s",
    ...metrics.flatMap((metric) => spread.map((name) => `${metric}_${name}_ms`)), "output_tokens_mean", "client_lag_p99_ms"];
  const rows = data.runs.flatMap((run) => run.levels.map((level) => [run.label, run.engine, level.mode, level.load === null ? "inf" : level.load,
    level.duration_s, level.completed, level.failed, level.output_throughput, level.request_throughput, slo.ttft, slo.tpot,
    level.slo.attainment, level.slo.goodput, ...metrics.flatMap((metric) => spread.map((name) => level[metric][name])), level.tokens_mean, level.client_lag_ms]));
  return [head, ...rows].map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
};

const save = (name, type, text) => {
  const link = html("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
};

const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page from a file may have no clipboard of its own; the old way asks for none.
    const area = html("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
};
