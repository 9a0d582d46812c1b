//! Seeded changes to files.

/// Numbers that are at the edge of something: of a type, of a count, of what is plausible.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    13,
    255,
    1 << 16,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];
/// Floats that configurations should not have.
const FLOATS: [f32; 8] =
    [0.0, -1.0, 1e-45, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-30];

/// A small generator of repeatable numbers (SplitMix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        let end = end.max(1) as u64;
        usize::try_from(self.next() % end).expect("less than a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// Returns a copy of `whole` with one to three changes, most of them in its first `head_len` bytes.
pub(crate) fn mutate(whole: &[u8], head_len: usize, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=numbers.below(3) {
        let reach = if numbers.below(8) == 0 { bytes.len() } else { head_len.min(bytes.len()) };
        let at = numbers.below(reach);
        change(&mut bytes, at, numbers);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, at: usize, numbers: &mut Numbers) {
    let rest = bytes.len() - at;
    let len = (1 + numbers.below(32)).min(rest);
    match numbers.below(12) {
        0 => bytes.truncate(at),
        1 => {
            bytes.drain(at..at + len);
        }
        2 => {
            let copy = bytes[at..at + len].to_vec();
            bytes.splice(at..at, copy);
        }
        3 => {
            let from = numbers.below(rest);
            bytes.copy_within(at + from..(at + from + len).min(at + rest), at);
        }
        4 => bytes[at..at + len].fill_with(|| numbers.byte()),
        5 | 6 => {
            let edge = EDGES[numbers.below(EDGES.len())].to_le_bytes();
            let width = [1, 2, 4, 8][numbers.below(4)];
            overwrite(bytes, at, &edge[..width]);
        }
        7 => {
            let float = FLOATS[numbers.below(FLOATS.len())];
            overwrite(bytes, at, &float.to_le_bytes());
        }
        8 => overwrite(bytes, at, &[numbers.byte()]),
        9 | 10 => change_decimal(bytes, at, numbers),
        _ => change_value_of_key(bytes, at, numbers),
    }
}

/// Overwrites what of `new` fits.
fn overwrite(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (old, new) in bytes.iter_mut().skip(at).zip(new) {
        *old = *new;
    }
}

/// Replaces the next decimal number after `at`, as JSON has them: by digits of the same length, so
/// that what follows keeps its place, or by another number.
fn change_decimal(bytes: &mut Vec<u8>, at: usize, numbers: &mut Numbers) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit) else { return };
    let start = at + start;
    let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if numbers.below(2) == 0 {
        bytes[start..start + len].fill_with(|| b'0' + numbers.byte() % 10);
        return;
    }
    let edge = EDGES[numbers.below(EDGES.len())];
    let text = [edge.to_string(), format!("-{edge}"), "0.5".to_owned(), "1e400".to_owned()];
    bytes.splice(start..start + len, text[numbers.below(4)].bytes());
}

/// Overwrites the type or the value that follows the next dotted name after `at`, as GGUF's
/// metadata has them.
fn change_value_of_key(bytes: &mut [u8], at: usize, numbers: &mut Numbers) {
    let is_name = |byte: &u8| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'.');
    let Some(dot) = bytes[at..].iter().position(|byte| *byte == b'.') else { return };
    let name = bytes[at + dot..].iter().take_while(|byte| is_name(byte)).count();
    let value_type = at + dot + name;
    if numbers.below(4) == 0 {
        let code = u32::try_from(numbers.below(15)).expect("a small number");
        return overwrite(bytes, value_type, &code.to_le_bytes());
    }
    let is_float = bytes.get(value_type) == Some(&6);
    if is_float {
        let float = FLOATS[numbers.below(FLOATS.len())];
        overwrite(bytes, value_type + 4, &float.to_le_bytes());
    } else {
        let edge = EDGES[numbers.below(EDGES.len())].to_le_bytes();
        let width = [1, 4, 8][numbers.below(3)];
        overwrite(bytes, value_type + 4, &edge[..width]);
    }
}
