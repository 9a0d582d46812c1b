// The runs, and what their requests are worth under an SLO.
const data = JSON.parse(byId("data").textContent);

data.runs.forEach((run, i) => {
  run.index = i;
  run.levels.forEach((level, j) => {
    level.index = j;
    // What the level is chosen by: the same load in another run has the same key.
    level.key = `${level.mode}:${level.load === null ? "inf" : level.load}`;
    level.title = level.mode === "concurrency"
      ? `${level.name} ${level.load === 1 ? "user" : "users"} at once`
      : level.load === null ? "all at once" : `${level.name} requests/s`;
    const { requests } = level;
    requests.failedAt = new Map(requests.failed);
  });
});

const modes = ["concurrency", "rate"].filter((mode) => data.runs.some((run) => run.levels.some((level) => level.mode === mode)));
const MODE_NAME = { concurrency: "users at once", rate: "requests/s offered" };

// Counts requests that meet the SLO: each that ended well, has a first token, and comes within both
// targets. A request of one token has no TPOT, so it can only fail on TTFT.
const countGood = (level, slo) => {
  const { ttft, tpot, failedAt } = level.requests;
  // Times are whole microseconds, rounded up; so targets of whole microseconds lose nothing.
  const most = (ms) => (ms === null ? Infinity : Math.round(ms * 1000));
  const mostTtft = most(slo.ttft);
  const mostTpot = most(slo.tpot);
  let good = 0;
  for (let i = 0; i < ttft.length; i += 1) {
    if (ttft[i] !== null && ttft[i] <= mostTtft && (tpot[i] === null || tpot[i] <= mostTpot) && !failedAt.has(i)) good += 1;
  }
  return good;
};

const underSlo = (level, slo) => {
  const good = countGood(level, slo);
  const total = level.requests.ttft.length;
  return {
    attainment: total > 0 ? good / total : null,
    goodput: level.duration_s > 0 ? good / level.duration_s : 0,
  };
};

// The highest load at which `share` of the requests meet the SLO: between the last level that
// holds and the first that does not, linear in attainment.
const loadAt = (levels, share) => {
  const finite = levels.filter((level) => level.load !== null && level.slo.attainment !== null);
  if (finite.length === 0) return null;
  const miss = finite.findIndex((level) => level.slo.attainment < share);
  if (miss === 0) return { load: null, goodput: null, isLowerBound: false };
  if (miss < 0) {
    const last = finite[finite.length - 1];
    return { load: last.load, goodput: last.slo.goodput, isLowerBound: true };
  }
  const [a, b] = [finite[miss - 1], finite[miss]];
  const part = (a.slo.attainment - share) / (a.slo.attainment - b.slo.attainment);
  const between = (from, to) => from + (to - from) * part;
  return { load: between(a.load, b.load), goodput: between(a.slo.goodput, b.slo.goodput), isLowerBound: false };
};

// Sorted times of the requests that ended well, in milliseconds.
const sortedTimes = (level, column) => {
  const cache = (level.sorted ??= {});
  return (cache[column] ??= level.requests[column]
    .filter((time, i) => time !== null && !level.requests.failedAt.has(i)).map((time) => time / 1000).sort((a, b) => a - b));
};

// Points [value, share in %] of the distribution of a metric, at most some hundred.
const distribution = (level, metric) => {
  if (metric === "itl") return level.gaps.map((gap, i) => ({ x: gap, y: data.gap_percentages[i] }));
  const sorted = sortedTimes(level, metric === "e2e" ? "end" : metric);
  const steps = Math.min(400, sorted.length);
  return Array.from({ length: steps }, (_, i) => {
    const place = steps === 1 ? 0 : Math.round((i * (sorted.length - 1)) / (steps - 1));
    return { x: sorted[place], y: (100 * (place + 1)) / sorted.length };
  });
};
