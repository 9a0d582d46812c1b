//! Numbers as people read them: three significant digits, no exponent, no false precision.
//!
//! The page's script has the same rules, so that a number reads the same with and without it.

/// Stands where a number is not known.
pub(crate) const UNKNOWN: &str = "–";

/// Returns a number with about three significant digits: `0.012`, `1.23`, `45.6`, `789`, `12 345`.
#[must_use]
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    let num_decimals = match size {
        _ if size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ => 3,
    };
    grouped(&format!("{value:.num_decimals$}"))
}

/// Returns a number of seconds in milliseconds, without the unit.
#[must_use]
pub(crate) fn milliseconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| UNKNOWN.to_owned(), |seconds| short(seconds * 1000.0))
}

/// Returns a share in percent, without the sign. Rounded down, so that only all is `100`.
#[must_use]
pub(crate) fn percent(share: f64) -> String {
    // The small excess keeps 0.29 * 100 from reading as 28.9.
    let tenths = (share * 1000.0 + 1e-6).floor() / 10.0;
    if tenths.fract() == 0.0 { format!("{tenths:.0}") } else { format!("{tenths:.1}") }
}

/// Returns a number as short as it can be written exactly: `4`, `0.5`.
#[must_use]
pub(crate) fn exact(value: f64) -> String {
    if value.is_infinite() { "all at once".to_owned() } else { grouped(&value.to_string()) }
}

/// Puts narrow spaces between thousands when the whole part has five digits or more.
fn grouped(digits: &str) -> String {
    let (whole, rest) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    if whole.len() < 5 {
        return digits.to_owned();
    }
    let mut text = sign.to_owned();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0.000"),
            (0.0123, "0.012"),
            (1.0, "1.00"),
            (9.996, "10.0"),
            (45.67, "45.7"),
            (99.96, "100"),
            (789.4, "789"),
            (1234.0, "1234"),
            (12_345.6, "12\u{202f}346"),
            (-1_234_567.0, "-1\u{202f}234\u{202f}567"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn only_all_is_100_percent() {
        for (share, text) in [(1.0, "100"), (0.9999, "99.9"), (0.29, "29"), (0.125, "12.5")] {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn loads_are_written_exactly() {
        for (load, text) in [(4.0, "4"), (0.5, "0.5"), (f64::INFINITY, "all at once")] {
            assert_eq!(exact(load), text);
        }
    }
}
