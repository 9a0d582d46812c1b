// Axes: from values to pixels, with marks at round values.
const NICE = [1, 2, 5, 10];
const roundUp = (value) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * NICE.find((factor) => factor * power >= value * (1 - 1e-9));
};
const roundDown = (value) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [...NICE].reverse().find((factor) => factor * power <= value * (1 + 1e-9));
};

const linearScale = (low, high, from, to, numTicks) => {
  const step = roundUp(Math.max(high - low, 1e-9) / numTicks);
  const top = Math.ceil(high / step - 1e-9) * step;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= top + step * 1e-6; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  const at = (value) => from + ((value - low) / (top - low || 1)) * (to - from);
  const back = (pixel) => low + ((pixel - from) / (to - from)) * (top - low);
  return { at, back, ticks, shows: () => true, low, high: top };
};

const logScale = (low, high, from, to) => {
  let [bottom, top] = [roundDown(low), roundUp(high)];
  if (bottom === top) { bottom /= 2; top *= 2; }
  const decades = Math.log10(top / bottom);
  const factors = decades <= 1.5 ? [1, 2, 3, 5, 7] : decades <= 3.2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = Math.floor(Math.log10(bottom)); power <= Math.ceil(Math.log10(top)); power += 1) {
    for (const factor of factors) {
      const tick = Number((factor * 10 ** power).toPrecision(12));
      if (tick >= bottom * (1 - 1e-9) && tick <= top * (1 + 1e-9)) ticks.push(tick);
    }
  }
  const [a, b] = [Math.log(bottom), Math.log(top)];
  const at = (value) => from + ((Math.log(value) - a) / (b - a)) * (to - from);
  const back = (pixel) => Math.exp(a + ((pixel - from) / (to - from)) * (b - a));
  return { at, back, ticks, shows: (value) => value > 0, low: bottom, high: top };
};
