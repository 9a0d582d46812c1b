// A chart of lines: points over load with whiskers, or dense lines over time and latency.
//
// A view is { series, xLabel, xLog, yLog, marksX, marksY, ticksX, xMax, yMax, dense, fill, empty }; a
// series is { run, label, points: [{ x, y, low, high, note }] }, where x is null for "all at once".
class Chart {
  constructor(parent, { title, unit, note = "", height = 250, left = 0 }) {
    this.unit = unit;
    this.title = title;
    this.height = height;
    this.left = left;
    this.figure = html("figure", {}, html("figcaption", {}, html("b", {}, title), html("span", {}, [unit, note].filter(Boolean).join(" · "))));
    this.frame = html("div");
    this.tip = html("div", { class: "tip", hidden: true });
    this.figure.append(this.frame, this.tip);
    parent.append(this.figure);
    this.width = 0;
    new ResizeObserver(() => {
      const width = Math.floor(this.frame.clientWidth);
      if (width > 0 && width !== this.width) { this.width = width; this.draw(); }
    }).observe(this.frame);
  }

  update(view) {
    this.view = view;
    if (this.width > 0) this.draw();
  }

  draw() {
    const { view } = this;
    this.hide();
    if (!view) return;
    const points = view.series.flatMap((series) => series.points).filter((point) => known(point.y));
    if (points.length === 0) {
      this.frame.replaceChildren(html("p", { class: "empty" }, view.empty || "Nothing was measured here."));
      return;
    }
    this.layOut(points);
    const { width, height, box } = this;
    const root = svg("svg", {
      class: "plot", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img",
      "aria-label": `${this.title}, ${this.unit}. Arrow keys read the values.`,
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event), onpointerleave: () => this.hide(),
      onblur: () => this.hide(), onkeydown: (event) => this.key(event),
    });
    const clip = `clip-${this.clip ??= (Chart.count = (Chart.count || 0) + 1)}`;
    root.append(svg("clipPath", { id: clip }, svg("rect", { x: box.left, y: box.top - 6, width: box.right - box.left + 6, height: box.bottom - box.top + 7 })));
    this.drawAxes(root);
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    view.series.forEach((series) => this.drawSeries(inside, series));
    this.drawMarks(root);
    this.cross = svg("line", { class: "cross", y1: box.top, y2: box.bottom, visibility: "hidden" });
    root.append(this.cross, inside);
    this.frame.replaceChildren(root);
  }

  layOut(points) {
    const { view } = this;
    const tops = points.map((point) => (known(point.high) ? Math.min(point.high, point.y * 1.5) : point.y));
    const positive = points.map((point) => point.y).filter((y) => y > 0);
    const box = { top: 10, bottom: this.height - 40 };
    const highest = Math.max(...tops, ...(view.yMax ? [view.yMax] : []));
    const yLog = view.yLog && positive.length > 0;
    this.y = yLog ? logScale(Math.min(...positive), highest, box.bottom, box.top) : linearScale(0, highest || 1, box.bottom, box.top, 5);
    const longest = Math.max(...this.y.ticks.map((tick) => plain(tick).length));
    box.left = this.left || Math.max(34, longest * 7.2 + 14);
    const finite = points.map((point) => point.x).filter((x) => x !== null);
    const hasInfinity = view.series.some((series) => series.points.some((point) => point.x === null));
    box.right = this.width - 14;
    // "All at once" is no number: it stands beyond a gap, apart from the axis.
    this.infinity = hasInfinity ? (finite.length === 0 ? (box.left + box.right) / 2 : box.right - 30) : null;
    this.axisRight = hasInfinity ? (finite.length === 0 ? box.left : box.right - 76) : box.right;
    const high = Math.max(...finite, view.xMax || 0, 1e-9);
    const low = Math.min(...finite.filter((x) => x > 0));
    const useLog = view.xLog && Number.isFinite(low);
    // Points keep clear of the frame.
    const inset = view.dense ? 0 : 12;
    this.x = useLog ? this.tightLog(low, high, box.left + inset, this.axisRight - inset, view.dense)
      : linearScale(0, high, box.left, this.axisRight - inset, Math.max(3, Math.min(8, Math.floor((this.axisRight - box.left) / 75))));
    if (view.ticksX) this.x.ticks = this.measuredTicks(view.ticksX);
    else this.x.ticks = this.apart(this.x.ticks);
    this.hasFinite = finite.length > 0;
    this.box = box;
  }

  // Loads are measured at chosen values: the axis ends at them, not at round values beyond.
  tightLog(low, high, from, to, dense) {
    if (dense) return logScale(low, high, from, to);
    const scale = logScale(low, high, from, to);
    if (low === high) return scale;
    const [a, b] = [Math.log(low), Math.log(high)];
    return {
      ...scale,
      at: (value) => from + ((Math.log(value) - a) / (b - a)) * (to - from),
      back: (pixel) => Math.exp(a + ((pixel - from) / (to - from)) * (b - a)),
      ticks: scale.ticks.filter((tick) => tick >= low && tick <= high),
    };
  }

  // The measured loads as marks, where they have room; else round values.
  measuredTicks(loads) {
    const sorted = [...new Set(loads)].sort((a, b) => a - b);
    const kept = this.apart(sorted);
    return kept.length >= 2 || sorted.length === 1 ? kept : this.apart(this.x.ticks);
  }

  apart(ticks) {
    let end = -Infinity;
    return ticks.filter((tick) => {
      const half = plain(tick).length * 3.6;
      const at = this.x.at(tick);
      if (at - half < end + 8) return false;
      end = at + half;
      return true;
    });
  }

  drawAxes(root) {
    const { box, x, y, view } = this;
    for (const tick of y.ticks) {
      const at = y.at(tick);
      root.append(svg("line", { class: tick === 0 ? "axis" : "rule", x1: box.left, x2: box.right, y1: at, y2: at }),
        svg("text", { x: box.left - 7, y: at + 4, "text-anchor": "end" }, plain(tick)));
    }
    root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    if (this.hasFinite) {
      for (const tick of x.ticks) {
        const at = x.at(tick);
        root.append(svg("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }),
          svg("text", { x: at, y: box.bottom + 17, "text-anchor": "middle" }, plain(tick)));
      }
    }
    if (this.infinity !== null) {
      root.append(svg("text", { x: this.infinity, y: box.bottom + 17, "text-anchor": "middle" }, "at once"));
      if (this.hasFinite) {
        const gap = (this.axisRight + this.infinity) / 2 - 8;
        root.append(svg("line", { class: "mark", x1: gap, x2: gap, y1: box.top, y2: box.bottom + 6, opacity: .5 }));
      }
    }
    root.append(svg("text", { x: (box.left + box.right) / 2, y: this.height - 4, "text-anchor": "middle" }, view.xLabel));
  }

  drawMarks(root) {
    const { box, x, y, view } = this;
    for (const { value, label } of view.marksY || []) {
      const at = y.at(value);
      if (!(at >= box.top - 1 && at <= box.bottom)) continue;
      root.append(svg("line", { class: "mark", x1: box.left, x2: box.right, y1: at, y2: at }),
        svg("text", { x: box.left + 5, y: at - 4 }, label));
    }
    for (const { value, label } of view.marksX || []) {
      const at = x.at(value);
      if (!(at >= box.left && at <= this.axisRight)) continue;
      const right = at > box.left + (this.axisRight - box.left) * .75;
      root.append(svg("line", { class: "mark", x1: at, x2: at, y1: box.top, y2: box.bottom }),
        svg("text", { x: at + (right ? -5 : 5), y: box.bottom - 6, "text-anchor": right ? "end" : "start" }, label));
    }
  }

  place(point) {
    return [point.x === null ? this.infinity : this.x.at(point.x), this.y.at(point.y)];
  }

  drawSeries(group, { run, points }) {
    const { view } = this;
    const shown = points.filter((point) => known(point.y) && this.y.shows(point.y) && (point.x === null || this.x.shows(point.x)));
    const line = shown.filter((point) => point.x !== null).map((point) => this.place(point));
    const part = svg("g", { class: colour(run) });
    const path = (list) => list.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)},${py.toFixed(1)}`).join("");
    const ranged = shown.filter((point) => point.x !== null && known(point.low));
    const edge = (value) => this.y.at(Math.max(value, this.y.low));
    if (ranged.length > 1) {
      const above = ranged.map((point) => [this.x.at(point.x), edge(point.high)]);
      const below = ranged.map((point) => [this.x.at(point.x), edge(point.low)]).reverse();
      part.append(svg("path", { class: "band", d: `${path([...above, ...below])}z` }));
    }
    if (view.fill && line.length > 0) {
      const [first, last] = [line[0], line[line.length - 1]];
      part.append(svg("path", { class: "area", d: `${path(line)}L${last[0]},${this.box.bottom}L${first[0]},${this.box.bottom}z` }));
    }
    part.append(svg("path", { class: "line", d: path(line), "stroke-dasharray": dash(run) }));
    if (!view.dense) {
      for (const point of shown) {
        const [px, py] = this.place(point);
        if (known(point.low)) {
          const [top, bottom] = [edge(point.high), edge(point.low)];
          part.append(svg("path", { class: "whisker", d: `M${px - 4},${top}h8M${px},${top}V${bottom}M${px - 4},${bottom}h8` }));
        }
        part.append(svg("path", { class: "dot", d: marker(run), transform: `translate(${px} ${py})` }));
      }
    }
    group.append(part);
  }

  // The places on the x axis where values can be read.
  stops() {
    const { view } = this;
    if (view.dense) {
      const [from, to] = [this.box.left, this.axisRight];
      return Array.from({ length: 61 }, (_, i) => ({ pixel: from + ((to - from) * i) / 60, x: this.x.back(from + ((to - from) * i) / 60) }));
    }
    const loads = new Set(view.series.flatMap((series) => series.points.filter((point) => known(point.y)).map((point) => point.x)));
    return [...loads].filter((x) => x === null || this.x.shows(x)).map((x) => ({ x, pixel: x === null ? this.infinity : this.x.at(x) }))
      .sort((a, b) => a.pixel - b.pixel);
  }

  point(event) {
    const bounds = this.frame.getBoundingClientRect();
    const pixel = ((event.clientX - bounds.left) / bounds.width) * this.width;
    if (this.view.dense) {
      const clamped = Math.max(this.box.left, Math.min(this.axisRight, pixel));
      this.show({ pixel: clamped, x: this.x.back(clamped) });
      return;
    }
    const stops = this.stops();
    if (stops.length > 0) this.show(stops.reduce((best, stop) => (Math.abs(stop.pixel - pixel) < Math.abs(best.pixel - pixel) ? stop : best)));
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") { this.hide(); return; }
    if (!step) return;
    event.preventDefault();
    const stops = this.stops();
    const next = this.stop === undefined ? (step > 0 ? 0 : stops.length - 1) : Math.max(0, Math.min(stops.length - 1, this.stop + step));
    this.stop = next;
    this.show(stops[next]);
    announce(this.tip.innerText.replace(/\s+/g, " "));
  }

  valueAt(points, x) {
    if (!this.view.dense) return points.find((point) => point.x === x && known(point.y));
    let best = null;
    for (const point of points) if (point.x <= x) best = point; else break;
    return best;
  }

  show({ pixel, x }) {
    const { view, box } = this;
    const rows = view.series.map((series) => [series, this.valueAt(series.points, x)]).filter(([, point]) => point)
      .map(([series, point]) => html("p", {}, swatch(series.run), `${series.label} `, html("b", {}, `${precise(point.y)} ${view.yUnit ?? this.unit}`),
        known(point.low) ? html("small", {}, `95 % confidence ${precise(point.low)} to ${precise(point.high)}`) : null,
        point.note ? html("small", {}, point.note) : null));
    if (rows.length === 0) { this.hide(); return; }
    const when = x === null ? "all at once" : `${view.dense ? precise(x) : plain(x)} ${view.xUnit}`;
    this.tip.replaceChildren(html("p", { class: "when" }, when), ...rows);
    this.tip.hidden = false;
    this.cross.setAttribute("x1", pixel);
    this.cross.setAttribute("x2", pixel);
    this.cross.setAttribute("visibility", "visible");
    const scale = this.frame.clientWidth / this.width;
    const left = pixel * scale + this.frame.offsetLeft;
    const width = this.tip.offsetWidth;
    const beyond = left + 14 + width > this.figure.clientWidth;
    this.tip.style.left = `${Math.max(4, beyond ? left - width - 14 : left + 14)}px`;
    this.tip.style.top = `${this.frame.offsetTop + box.top + 6}px`;
  }

  hide() {
    this.tip.hidden = true;
    this.stop = undefined;
    if (this.cross) this.cross.setAttribute("visibility", "hidden");
  }
}
