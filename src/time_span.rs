//! Spans of time as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Units that are read, with their milliseconds, the longest name first where one ends another.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// A span of time that something waits for, or `off`: reads `30s`, `500ms`, `5m`, `1h`, or plain
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSpan(pub(crate) Option<Duration>);

/// A text that is not a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeSpanError {
    got: String,
}

impl fmt::Display for TimeSpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a time such as 30s, 500ms or 5m, nor `off`", self.got)
    }
}

impl std::error::Error for TimeSpanError {}

impl FromStr for TimeSpan {
    type Err = TimeSpanError;

    fn from_str(text: &str) -> Result<Self, TimeSpanError> {
        let error = || TimeSpanError { got: text.to_owned() };
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("off") {
            return Ok(Self(None));
        }
        let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = match unit.trim() {
            "" => "s",
            unit => unit,
        };
        let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?;
        let number: u64 = number.parse().map_err(|_| error())?;
        let span_ms = number.checked_mul(*unit_ms).ok_or_else(error)?;
        Ok(Self(Some(Duration::from_millis(span_ms))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_in_their_units() {
        let check = |text: &str, expected_ms: u64| {
            let expected = TimeSpan(Some(Duration::from_millis(expected_ms)));
            assert_eq!(text.parse(), Ok(expected), "{text}");
        };
        check("30s", 30_000);
        check("30", 30_000);
        check(" 500 ms ", 500);
        check("5m", 300_000);
        check("1h", 3_600_000);
        check("0s", 0);
        assert_eq!("off".parse(), Ok(TimeSpan(None)));
        for text in ["", "s", "-1s", "1.5s", "3 weeks", "99999999999999999999s"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }
}
