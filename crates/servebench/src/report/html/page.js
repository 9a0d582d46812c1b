// What the reader has chosen, and the page that follows from it.
const firstSlo = { ttft: data.runs[0]?.slo_ttft_ms ?? null, tpot: data.runs[0]?.slo_tpot_ms ?? null };
const state = {
  mode: modes[0] ?? "concurrency", hidden: new Set(), baseline: 0, headlineLoad: "", cdfLoad: "", percentile: "p50",
  xLog: true, yLog: false, slo: { ...firstSlo }, timeRun: 0, timeLevel: 0, timeRepeat: 0,
};
const visible = () => data.runs.filter((run) => !state.hidden.has(run.index));
const levelsOf = (run) => run.levels.filter((level) => level.mode === state.mode);
const loadsOf = (runs) => [...new Map(runs.flatMap(levelsOf).map((level) => [level.key, level])).values()]
  .sort((a, b) => (a.load ?? Infinity) - (b.load ?? Infinity));
const at = (run, key) => levelsOf(run).find((level) => level.key === key);
const best = (levels, value) => levels.reduce((top, level) => (top === null || value(level) > value(top) ? level : top), null);
const sloIsAsMeasured = () => state.slo.ttft === firstSlo.ttft && state.slo.tpot === firstSlo.tpot;

const overLoad = (value, confidence) => ({
  xLabel: MODE_NAME[state.mode], xUnit: MODE_NAME[state.mode], xLog: state.xLog,
  ticksX: loadsOf(visible()).map((level) => level.load).filter((load) => load !== null),
  series: visible().map((run) => ({
    run: run.index, label: run.label,
    points: levelsOf(run).map((level) => {
      const [, low, high] = (confidence && confidence(level)) || [];
      return { x: level.load, y: value(level), low, high, note: level.failed ? `${level.failed} of ${level.failed + level.completed} requests failed` : "" };
    }),
  })),
});

// ---- charts ----
const charts = {};
const PERCENTILES = [["p50", "p50"], ["p90", "p90"], ["p99", "p99"], ["mean", "mean"], ["worst10", "worst 10 %"]];
const LATENCIES = [
  ["ttft", "TTFT", "time to first token"], ["tpot", "TPOT", "per output token after the first, by request"],
  ["itl", "ITL", "gap between pieces of text"], ["e2e", "E2E", "until the end of the answer"],
];

const makeCharts = () => {
  const [slo, load, cdf, turn] = ["slo-charts", "load-charts", "cdf-charts", "turn-charts"].map(byId);
  charts.attainment = new Chart(slo, { title: "SLO attainment", unit: "% of requests", note: "failed ones count as missed" });
  charts.goodput = new Chart(slo, { title: "Goodput", unit: "good requests/s", note: "higher is better" });
  charts.output = new Chart(load, { title: "Output throughput", unit: "tokens/s", note: "higher is better" });
  charts.requests = new Chart(load, { title: "Completed requests", unit: "requests/s", note: "higher is better" });
  for (const [key, name, what] of LATENCIES) charts[key] = new Chart(load, { title: name, unit: "ms", note: `${what}; lower is better` });
  for (const [key, name] of LATENCIES) charts[`cdf-${key}`] = new Chart(cdf, { title: name, unit: "% within", height: 220 });
  charts.turn = new Chart(turn, { title: "TTFT", unit: "ms", note: "a later turn has a longer prompt, most of it seen before" });
};

const drawLoadCharts = () => {
  const scaled = (name, factor) => (level) => level.confidence[name]?.map((value) => value * factor);
  charts.output.update({ ...overLoad((level) => level.output_throughput, scaled("output_throughput", 1)) });
  charts.requests.update({ ...overLoad((level) => level.request_throughput, scaled("request_throughput", 1)) });
  for (const [key] of LATENCIES) {
    const target = key === "ttft" || key === "tpot" ? state.slo[key] : null;
    charts[key].update({
      ...overLoad((level) => level[key][state.percentile], scaled(`${key}_${state.percentile}`, 1000)), yLog: state.yLog,
      marksY: target === null ? [] : [{ value: target, label: `target ${plain(target)} ms` }],
    });
  }
};

const drawSloCharts = () => {
  charts.attainment.update({
    ...overLoad((level) => (level.slo.attainment === null ? null : level.slo.attainment * 100)), yMax: 100, yUnit: "%",
    marksY: [{ value: 90, label: "90 %" }, { value: 99, label: "99 %" }],
  });
  charts.goodput.update(overLoad((level) => level.slo.goodput, (level) => (sloIsAsMeasured() ? level.confidence.goodput : null)));
};

const drawDistributions = () => {
  const runs = visible().map((run) => [run, at(run, state.cdfLoad)]).filter(([, level]) => level);
  for (const [key] of LATENCIES) {
    const target = key === "ttft" || key === "tpot" ? state.slo[key] : null;
    charts[`cdf-${key}`].update({
      dense: true, xLabel: "ms", xUnit: "ms", yUnit: "%", yMax: 100, xLog: state.yLog, empty: "No run on show has this at this load.",
      marksX: target === null ? [] : [{ value: target, label: "target" }],
      series: runs.map(([run, level]) => ({ run: run.index, label: run.label, points: distribution(level, key) })),
    });
  }
  drawTurns(runs);
};

const drawTurns = (runs) => {
  const series = runs.filter(([, level]) => level.requests.turn.length > 0).map(([run, level]) => {
    const turns = new Map();
    level.requests.turn.forEach((number, i) => {
      const ttft = level.requests.ttft[i];
      if (number === null || ttft === null || level.requests.failedAt.has(i)) return;
      if (!turns.has(number)) turns.set(number, []);
      turns.get(number).push(ttft / 1000);
    });
    const points = [...turns].sort(([a], [b]) => a - b).map(([number, times]) => {
      times.sort((a, b) => a - b);
      return { x: number + 1, y: quantile(times, 50), low: null, note: `p90 ${precise(quantile(times, 90))} ms, ${times.length} requests` };
    });
    return { run: run.index, label: run.label, points };
  });
  byId("turns").hidden = series.length === 0;
  if (series.length === 0) return;
  const numbers = series.flatMap((one) => one.points.map((point) => point.x));
  charts.turn.update({ series, xLabel: "turn", xUnit: ". turn", ticksX: numbers, yLog: state.yLog, yUnit: "ms (p50)" });
};

// ---- time ----
const TIME_LEFT = 56;
const makeTime = () => {
  const controls = byId("time-controls");
  const pick = (label, onPick) => {
    const select = html("select", { onchange: () => { onPick(Number(select.value)); drawTime(); } });
    controls.append(html("label", {}, `${label} `, select));
    return select;
  };
  charts.timeRun = pick("Run", (value) => { Object.assign(state, { timeRun: value, timeLevel: 0, timeRepeat: 0 }); });
  charts.timeLevel = pick("Load", (value) => { Object.assign(state, { timeLevel: value, timeRepeat: 0 }); });
  charts.timeRepeat = pick("Repeat", (value) => { state.timeRepeat = value; });
  charts.timeline = new Timeline(byId("time-charts"), TIME_LEFT);
  charts.throughput = new Chart(byId("time-charts"), { title: "Output throughput over time", unit: "tokens/s", height: 190, left: TIME_LEFT });
};

const drawTime = () => {
  const run = data.runs[state.timeRun];
  const level = run?.levels[state.timeLevel];
  if (!level) return;
  setOptions(charts.timeRun, data.runs.map((other) => [other.index, other.label]), run.index);
  setOptions(charts.timeLevel, run.levels.map((other) => [other.index, other.title]), level.index);
  setOptions(charts.timeRepeat, level.repeats.map((_, i) => [i, `${i + 1} of ${level.repeats.length}`]), state.timeRepeat);
  charts.timeRepeat.parentElement.hidden = level.repeats.length < 2;
  const repeat = level.repeats[state.timeRepeat];
  const from = level.repeats.slice(0, state.timeRepeat).reduce((sum, other) => sum + other.num_requests, 0);
  charts.timeline.update({ run, level, from, to: from + repeat.num_requests, duration: repeat.duration_s });
  const points = repeat.throughput.flatMap((y, i) => {
    const [begin, end] = [i * repeat.stretch_s, Math.min((i + 1) * repeat.stretch_s, repeat.duration_s)];
    return [{ x: begin, y }, { x: end, y }];
  });
  charts.throughput.update({
    dense: true, fill: true, xLabel: `s since the start; mean over ${plain(repeat.stretch_s)} s`, xUnit: "s", xExact: charts.timeline.duration,
    series: [{ run: run.index, label: run.label, points }], empty: "The times of the pieces are not known.",
  });
};

// ---- headline ----
const drawHeadline = () => {
  const rows = [...byId("headline").tBodies[0].rows];
  const figures = data.runs.map((run) => {
    const levels = levelsOf(run);
    const level = state.headlineLoad === "" ? levels[0] : at(run, state.headlineLoad);
    const peak = best(levels, (other) => other.output_throughput);
    const good = best(levels, (other) => other.slo.goodput);
    const holds = loadAt(levels, .9);
    return {
      peak: [peak?.output_throughput, 1, peak && `at ${peak.title}`],
      ttft: [level?.ttft.p50, -1, level && (state.headlineLoad === "" ? `at ${level.title}` : "")],
      tpot: [level?.tpot.p50, -1, ""],
      goodput: [good?.slo.goodput, 1, good && `at ${good.title}`],
      holds: [holds?.load, 1, "", holds && (holds.load === null ? `below ${levels[0].name}` : `${holds.isLowerBound ? "≥ " : ""}${short(holds.load)}`)],
    };
  });
  rows.forEach((row) => {
    const run = Number(row.dataset.run);
    for (const field of row.querySelectorAll("[data-name]")) {
      const [value, direction, note, text] = figures[run][field.dataset.name] || [];
      if (direction === undefined) continue;
      const baseline = figures[state.baseline][field.dataset.name][0];
      field.replaceChildren(text ?? short(value));
      if (run !== state.baseline && known(value) && known(baseline) && baseline > 0) {
        const ratio = value / baseline;
        const gain = direction > 0 ? ratio : 1 / ratio;
        const kind = gain > 1.005 ? "better" : gain < .995 ? "worse" : "";
        field.append(html("span", { class: `ratio ${kind}` }, `× ${ratio.toFixed(2)}${kind ? ` ${kind}` : ""}`));
      } else if (run === state.baseline && data.runs.length > 1 && known(value)) {
        field.append(html("span", { class: "ratio" }, "baseline"));
      }
      if (note) field.append(html("span", { class: "sub" }, note));
    }
  });
};

const drawLevelTable = () => {
  for (const row of byId("levels").tBodies[0].rows) {
    const { attainment, goodput } = data.runs[row.dataset.run].levels[row.dataset.level].slo;
    setNumber(row.querySelector("[data-name=attainment]"), attainment, percent(attainment));
    setNumber(row.querySelector("[data-name=goodput]"), goodput, short(goodput));
  }
};

// ---- SLO ----
const sloControls = {};
const makeSlo = () => {
  for (const [key, name, what] of [["ttft", "TTFT target", "first token within"], ["tpot", "TPOT target", "each later token within, in the mean"]]) {
    const times = data.runs.flatMap((run) => run.levels.flatMap((level) => [level[key].p50, level[key].max])).filter((ms) => known(ms) && ms > 0);
    const ends = [...times, ...(firstSlo[key] ? [firstSlo[key]] : [])];
    const low = roundDown(Math.min(...ends, 1000) / 2);
    const high = roundUp(Math.max(...ends, low * 10) * 1.2);
    const toMs = (place) => Number((low * (high / low) ** (place / 1000)).toPrecision(3));
    const toPlace = (ms) => Math.round((1000 * Math.log(ms / low)) / Math.log(high / low));
    const set = (ms) => { state.slo[key] = ms; later(); };
    const range = html("input", { type: "range", min: 0, max: 1000, step: 1, "aria-label": `${name}, ${what}`, oninput: () => set(toMs(Number(range.value))) });
    const number = html("input", { type: "number", min: 0.001, step: "any", "aria-label": `${name} in milliseconds`, onchange: () => {
      const ms = Number(number.value);
      // To whole microseconds, the precision of the times.
      if (Number.isFinite(ms) && ms > 0) set(Math.max(1, Math.round(ms * 1000)) / 1000); else show();
    } });
    const use = html("input", { type: "checkbox", onchange: () => set(use.checked ? toMs(Number(range.value)) : null) });
    const show = () => {
      const ms = state.slo[key];
      use.checked = ms !== null;
      range.disabled = number.disabled = ms === null;
      if (ms === null) { number.value = ""; return; }
      range.value = toPlace(ms);
      range.setAttribute("aria-valuetext", `${plain(ms)} milliseconds`);
      number.value = ms;
    };
    byId("slo").append(html("div", { class: "slo-item" },
      html("div", { class: "row" }, html("label", {}, use, ` ${name}`), html("span", {}, number, " ms")), range, html("span", { class: "sub" }, what)));
    sloControls[key] = { show };
  }
  byId("slo-reset").addEventListener("click", () => { state.slo = { ...firstSlo }; later(); });
  byId("slo-table").append(html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Loads that meet the targets" },
    html("table", {}, html("caption", {}, "Loads that meet the targets"),
      html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "Run"),
        ...["90 % of requests meet the targets up to", "99 % up to", "most good requests/s"].map((text) => html("th", { scope: "col", class: "num" }, text)))),
      sloControls.body = html("tbody"))));
};

const drawSlo = () => {
  sloControls.ttft.show();
  sloControls.tpot.show();
  const upTo = (found) => {
    if (!found) return UNKNOWN;
    return found.load === null ? "no load measured" : `${found.isLowerBound ? "at least " : ""}${short(found.load)} ${MODE_NAME[state.mode]}`;
  };
  sloControls.body.replaceChildren(...visible().map((run) => {
    const levels = levelsOf(run);
    const good = best(levels, (level) => level.slo.goodput);
    return html("tr", {}, html("th", { scope: "row" }, swatch(run.index), run.label), html("td", { class: "num" }, upTo(loadAt(levels, .9))),
      html("td", { class: "num" }, upTo(loadAt(levels, .99))), html("td", { class: "num" }, good ? `${short(good.slo.goodput)} at ${good.title}` : UNKNOWN));
  }));
};

// ---- all together ----
const count = () => data.runs.forEach((run) => run.levels.forEach((level) => { level.slo = underSlo(level, state.slo); }));

let waiting = false;
// Counts and draws what depends on the SLO, once per picture however often a slider moves.
const later = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
};

const draw = () => {
  count();
  drawSlo();
  drawHeadline();
  drawSloCharts();
  drawLoadCharts();
  drawDistributions();
  drawLevelTable();
};

const setLoads = () => {
  const common = loadsOf(data.runs).filter((level) => data.runs.every((run) => at(run, level.key) || levelsOf(run).length === 0));
  state.headlineLoad = common[0]?.key ?? "";
  setOptions(byId("headline-load"), [...common.map((level) => [level.key, level.title]), ["", "each run's lowest load"]], state.headlineLoad);
  const all = loadsOf(data.runs);
  const shared = common.length > 0 ? common : all;
  state.cdfLoad = shared[shared.length - 1]?.key ?? "";
  setOptions(byId("cdf-load"), all.map((level) => [level.key, level.title]), state.cdfLoad);
};

const makeControls = () => {
  byId("legend").append(...data.runs.map((run) => {
    const button = html("button", { type: "button", "aria-pressed": "true", title: run.label, onclick: () => {
      if (!state.hidden.delete(run.index)) state.hidden.add(run.index);
      button.setAttribute("aria-pressed", String(!state.hidden.has(run.index)));
      draw();
    } }, swatch(run.index), html("span", {}, run.label));
    return button;
  }));
  const axes = byId("axis-controls");
  if (modes.length > 1) axes.append(choice("Load", modes.map((mode) => [mode, MODE_NAME[mode]]), state.mode, (mode) => { state.mode = mode; setLoads(); draw(); }));
  axes.append(choice("Latency", PERCENTILES, state.percentile, (value) => { state.percentile = value; drawLoadCharts(); }),
    choice("Load axis", [["linear", "linear"], ["log", "log"]], "log", (value) => { state.xLog = value === "log"; draw(); }),
    choice("Latency axis", [["linear", "linear"], ["log", "log"]], "linear", (value) => { state.yLog = value === "log"; draw(); }));
  const baseline = byId("baseline");
  setOptions(baseline, data.runs.map((run) => [run.index, run.label]), 0);
  baseline.parentElement.hidden = data.runs.length < 2;
  baseline.addEventListener("change", () => { state.baseline = Number(baseline.value); drawHeadline(); });
  byId("headline-load").addEventListener("change", (event) => { state.headlineLoad = event.target.value; drawHeadline(); });
  byId("cdf-load").addEventListener("change", (event) => { state.cdfLoad = event.target.value; drawDistributions(); });
  byId("copy-markdown").addEventListener("click", async () => {
    const copied = await copyText(`${markdownTable(byId("headline"))}\n\n${markdownTable(byId("levels"))}\n`);
    const button = byId("copy-markdown");
    button.textContent = copied ? "Copied" : "This browser does not let it";
    announce(button.textContent);
    setTimeout(() => { button.textContent = "Copy as Markdown"; }, 1800);
  });
  byId("download-csv").addEventListener("click", () => save("servebench-levels.csv", "text/csv", levelsAsCsv(state.slo)));
};

const THEMES = ["system", "light", "dark"];
const makeTheme = () => {
  const button = byId("theme");
  // Storage may be closed to a page from a file; the choice then lasts as long as the page.
  let theme = "system";
  try { theme = localStorage.getItem("servebench-theme") ?? theme; } catch { /* as said above */ }
  const apply = () => {
    if (theme === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    charts.timeline.draw();
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try { localStorage.setItem("servebench-theme", theme); } catch { /* as said above */ }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
};

document.documentElement.classList.replace("no-js", "js");
if (data.runs.length > 0) {
  makeCharts();
  makeTime();
  makeSlo();
  makeControls();
  makeTheme();
  setLoads();
  for (const table of document.querySelectorAll("table.sortable, #levels, #errors")) makeSortable(table);
  for (const field of document.querySelectorAll("#headline tbody tr[data-run] > th, #levels tbody tr[data-run] > th")) {
    field.prepend(swatch(Number(field.parentElement.dataset.run)));
  }
  draw();
  drawTime();
}
