// Numbers as people read them; the same rules as in the tables that are there without a script.
const UNKNOWN = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

const grouped = (digits) => {
  const [whole, rest] = digits.split(".");
  if (whole.replace("-", "").length < 5) return digits;
  const spaced = whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return rest === undefined ? spaced : `${spaced}.${rest}`;
};

const short = (value) => {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  return grouped(value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3));
};

// One digit more than `short`, for tooltips.
const precise = (value) => {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  return grouped(value.toFixed(size >= 999.95 ? 0 : size >= 99.995 ? 1 : size >= 9.9995 ? 2 : 3));
};

// Rounded down, so that only all is 100.
const percent = (share) => {
  if (!known(share)) return UNKNOWN;
  const tenths = Math.floor(share * 1000 + 1e-6) / 10;
  return Number.isInteger(tenths) ? String(tenths) : tenths.toFixed(1);
};

// As few digits as say it all.
const plain = (value) => grouped(String(Number(value.toPrecision(10))));

// The value at a percentage of sorted values, linear between neighbours.
const quantile = (sorted, percentage) => {
  if (sorted.length === 0) return null;
  const place = ((sorted.length - 1) * percentage) / 100;
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
};
