// Requests of one level over time, each a bar: waiting for its first token, then decoding. Drawn on a
// canvas, because there may be tens of thousands.
class Timeline {
  constructor(parent, left) {
    this.left = left;
    this.key = html("p", { class: "key" });
    this.canvas = html("canvas", { tabindex: 0, role: "img",
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event), onpointerleave: () => this.hide(),
      onblur: () => this.hide(), onkeydown: (event) => this.step(event) });
    this.tip = html("div", { class: "tip", hidden: true });
    this.figure = html("figure", {}, html("figcaption", {}, html("b", {}, "Requests"), this.note = html("span")), this.key, this.canvas, this.tip);
    parent.append(this.figure);
    new ResizeObserver(() => {
      if (this.canvas.clientWidth !== this.width) { this.width = this.canvas.clientWidth; this.draw(); }
    }).observe(this.figure);
  }

  // Shows requests `from` up to `to` of a level.
  update({ run, level, from, to, duration }) {
    this.run = run;
    this.figure.className = colour(run.index);
    const { start, ttft, end, failedAt } = level.requests;
    const bars = [];
    for (let i = from; i < to; i += 1) {
      const begin = start[i] / 1e6;
      const first = ttft[i] === null ? null : begin + ttft[i] / 1e6;
      bars.push({ i, begin, first, end: begin + (end[i] ?? 0) / 1e6, error: failedAt.get(i), level });
    }
    bars.sort((a, b) => a.begin - b.begin || a.i - b.i);
    this.numLanes = this.pack(bars);
    this.bars = bars;
    this.duration = Math.max(duration, ...bars.slice(-1).map((bar) => bar.end), 1e-9);
    for (const bar of bars) this.duration = Math.max(this.duration, bar.end);
    const numFailed = bars.filter((bar) => bar.error !== undefined).length;
    this.note.textContent = `${grouped(String(bars.length))} requests, at most ${grouped(String(this.numLanes))} at once`;
    this.key.replaceChildren(...[["wait", "until the first token"], ["decode", "decoding"], ...(numFailed ? [["fail", `failed (${numFailed})`]] : [])]
      .map(([name, text]) => html("span", {}, html("i", { class: name }), text)));
    this.canvas.setAttribute("aria-label", `${bars.length} requests of ${run.label} over ${precise(this.duration)} seconds, ${numFailed} failed. Arrow keys read them one by one.`);
    this.chosen = undefined;
    this.draw();
  }

  // Puts each bar into the first lane that is free: as many lanes as requests were in flight.
  pack(bars) {
    const free = [];
    for (const bar of bars) {
      let lane = free.findIndex((until) => until <= bar.begin + 1e-9);
      if (lane < 0) lane = free.push(0) - 1;
      free[lane] = Math.max(bar.end, bar.begin + 1e-6);
      bar.lane = lane;
    }
    return free.length;
  }

  draw() {
    this.hide();
    if (!this.bars || !this.width) return;
    const style = getComputedStyle(this.figure);
    const pick = (name) => style.getPropertyValue(name).trim();
    this.pitch = Math.max(1, Math.min(18, 420 / Math.max(1, this.numLanes)));
    const height = Math.max(40, Math.ceil(this.pitch * this.numLanes)) + 4;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const [wait, decode, fail, card] = ["--ink-2", "--c", "--bad", "--card"].map(pick);
    const gap = this.pitch > 5 ? 2 : this.pitch > 2.5 ? 1 : 0;
    for (const bar of this.bars) {
      const y = bar.lane * this.pitch + 2;
      const tall = this.pitch - gap;
      const [a, c] = [this.pixel(bar.begin), Math.max(this.pixel(bar.end), this.pixel(bar.begin) + 1)];
      const b = bar.first === null ? c : this.pixel(bar.first);
      context.globalAlpha = .4;
      context.fillStyle = bar.error === undefined ? wait : fail;
      context.fillRect(a, y, Math.max(b - a, .5), tall);
      context.globalAlpha = 1;
      context.fillStyle = bar.error === undefined ? decode : fail;
      if (bar.first !== null) context.fillRect(b, y, Math.max(c - b, .5), tall);
      if (gap > 0 && c - a > 3) {
        context.fillStyle = card;
        context.fillRect(c - .75, y, .75, tall);
      }
      if (bar.error !== undefined) {
        // A cross where it broke off: red alone is not seen by all.
        const size = Math.max(3, Math.min(6, tall / 2));
        const middle = y + tall / 2;
        context.strokeStyle = fail;
        context.lineWidth = 2;
        context.beginPath();
        context.moveTo(c - size, middle - size); context.lineTo(c + size, middle + size);
        context.moveTo(c - size, middle + size); context.lineTo(c + size, middle - size);
        context.stroke();
      }
    }
  }

  pixel(time) {
    return this.left + (time / this.duration) * (this.width - this.left - 14);
  }

  point(event) {
    if (!this.bars) return;
    const bounds = this.canvas.getBoundingClientRect();
    const lane = Math.floor((event.clientY - bounds.top - 2) / this.pitch);
    const time = ((event.clientX - bounds.left - this.left) / (this.width - this.left - 14)) * this.duration;
    const found = this.bars.find((bar) => Math.abs(bar.lane - lane) < 1 && bar.begin <= time && time <= bar.end);
    if (found) this.show(found); else this.hide();
  }

  step(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") this.hide();
    if (!step || !this.bars || this.bars.length === 0) return;
    event.preventDefault();
    const next = this.chosen === undefined ? 0 : Math.max(0, Math.min(this.bars.length - 1, this.chosen + step));
    this.show(this.bars[next]);
    this.chosen = next;
    announce(this.tip.innerText.replace(/\s+/g, " "));
  }

  show(bar) {
    const { requests } = bar.level;
    const line = (name, text) => html("p", {}, `${name} `, html("b", {}, text));
    const ms = (microseconds) => `${precise(microseconds / 1000)} ms`;
    this.tip.replaceChildren(html("p", { class: "when" }, `request ${bar.i}, due at ${precise(bar.begin)} s`),
      ...[bar.error === undefined ? null : line("failed:", bar.error),
        requests.ttft[bar.i] === null ? null : line("TTFT", ms(requests.ttft[bar.i])),
        requests.tpot[bar.i] === null ? null : line("TPOT", ms(requests.tpot[bar.i])),
        requests.end[bar.i] === null ? null : line(bar.error === undefined ? "E2E" : "broke off after", ms(requests.end[bar.i])),
        line("output tokens", plain(requests.tokens[bar.i]))].filter(Boolean));
    this.tip.hidden = false;
    const x = this.canvas.offsetLeft + this.pixel((bar.begin + bar.end) / 2);
    this.tip.style.left = `${Math.max(4, Math.min(x + 10, this.figure.clientWidth - this.tip.offsetWidth - 6))}px`;
    this.tip.style.top = `${this.canvas.offsetTop + (bar.lane + 1) * this.pitch + 8}px`;
  }

  hide() {
    this.tip.hidden = true;
    this.chosen = undefined;
  }
}
