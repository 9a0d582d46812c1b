//! Sizes in bytes as people write and read them.

use std::fmt;
use std::str::FromStr;

/// Units that are read, with their bytes; those that end in `iB` are printed.
const UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];

/// A number of bytes: reads `2GiB`, `512 MiB`, `1.5GB` or plain bytes, prints in the largest
/// binary unit that leaves at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByteSizeError {
    got: String,
}

impl fmt::Display for ByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a size such as 2GiB, 512MiB or 1.5GB", self.got)
    }
}

impl std::error::Error for ByteSizeError {}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let error = || ByteSizeError { got: text.to_owned() };
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        let (_, bytes_per_unit) =
            UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(error)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().map_err(|_| error())?;
        let mut num_bytes = whole.checked_mul(*bytes_per_unit).ok_or_else(error)?;
        if !fraction.is_empty() {
            // Nine digits say more than anybody means, and keep the product in 128 bits.
            let digits = &fraction[..fraction.len().min(9)];
            let value: u128 = digits.parse().map_err(|_| error())?;
            let part = value * u128::from(*bytes_per_unit) / 10_u128.pow(decimals(digits));
            num_bytes = num_bytes.saturating_add(u64::try_from(part).map_err(|_| error())?);
        }
        Ok(Self(num_bytes))
    }
}

fn decimals(digits: &str) -> u32 {
    u32::try_from(digits.len()).expect("at most nine digits are kept")
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS[..4].iter().find(|(_, bytes_per_unit)| self.0 >= *bytes_per_unit);
        match unit {
            None => write!(f, "{} B", self.0),
            Some((name, bytes_per_unit)) => {
                let value = self.0 as f64 / *bytes_per_unit as f64;
                let decimals = if value < 100.0 { 2 } else { 0 };
                write!(f, "{value:.decimals$} {name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        let check = |text: &str, expected: u64| {
            assert_eq!(text.parse(), Ok(ByteSize(expected)), "{text}");
        };
        check("2GiB", 2 << 30);
        check(" 512 mib ", 512 << 20);
        check("1.5GB", 1_500_000_000);
        check("0.5GiB", 512 << 20);
        check("123", 123);
        for text in ["", "GiB", "-1GiB", "1XiB", "1.2.3GB", "99999999999TiB", "1e3"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_in_the_largest_unit_that_fits() {
        assert_eq!(ByteSize(0).to_string(), "0 B");
        assert_eq!(ByteSize(23_040).to_string(), "22.50 KiB");
        assert_eq!(ByteSize(2 << 30).to_string(), "2.00 GiB");
        assert_eq!(ByteSize(300 << 20).to_string(), "300 MiB");
    }
}
