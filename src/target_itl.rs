//! The target of the time between two tokens of a stream, as people write it.

use mini_infer_engine::TargetItl;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Largest target that is read: an hour says `off` more clearly.
const MAX_MS: f64 = 3_600_000.0;

/// Milliseconds, `auto` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetItlMs(pub(crate) TargetItl);

/// A text that is no target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetItlError {
    got: String,
}

impl fmt::Display for TargetItlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a time in milliseconds up to {MAX_MS}, such as 50, nor `auto` or `off`",
            self.got
        )
    }
}

impl std::error::Error for TargetItlError {}

impl FromStr for TargetItlMs {
    type Err = TargetItlError;

    fn from_str(text: &str) -> Result<Self, TargetItlError> {
        let text = text.trim();
        let target = match text.to_ascii_lowercase().as_str() {
            "auto" => TargetItl::Derived,
            "off" => TargetItl::Off,
            number => {
                let ms = number.parse::<f64>().ok().filter(|ms| *ms > 0.0 && *ms <= MAX_MS);
                let ms = ms.ok_or_else(|| TargetItlError { got: text.to_owned() })?;
                TargetItl::Within(Duration::from_secs_f64(ms / 1e3))
            }
        };
        Ok(Self(target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_auto_and_off_are_read_and_nothing_else() {
        let within = |ms| Ok(TargetItlMs(TargetItl::Within(Duration::from_millis(ms))));
        assert_eq!("50".parse(), within(50));
        assert_eq!(" 2500 ".parse(), within(2500));
        assert_eq!("auto".parse(), Ok(TargetItlMs(TargetItl::Derived)));
        assert_eq!("Off".parse(), Ok(TargetItlMs(TargetItl::Off)));
        for bad in ["", "0", "-5", "50ms", "nan", "inf", "1e99"] {
            assert!(bad.parse::<TargetItlMs>().is_err(), "{bad:?}");
        }
    }
}
