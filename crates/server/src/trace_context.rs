//! Which trace a request belongs to: W3C Trace Context, level 1.

use crate::seeds::SeedSource;
use axum::http::HeaderMap;
use std::fmt::Write;

/// The header that carries a trace from one service to the next.
const TRACEPARENT: &str = "traceparent";

/// Where in a trace a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// The trace; never zero.
    pub(crate) trace_id: u128,
    /// The caller's span, if the request came with one; never zero.
    pub(crate) parent_id: Option<u64>,
    /// Whether spans are to be kept.
    pub(crate) is_sampled: bool,
}

impl TraceContext {
    /// Returns what the headers say, or a trace that begins here: a header that cannot be read
    /// counts as none.
    pub(crate) fn new(headers: &HeaderMap) -> Self {
        let header = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        header.and_then(parse).unwrap_or_else(|| Self {
            trace_id: (u128::from(random_id()) << 64) | u128::from(random_id()),
            parent_id: None,
            is_sampled: true,
        })
    }
}

/// Returns an id that is not zero.
pub(crate) fn random_id() -> u64 {
    SeedSource::new(None).next_seed().max(1)
}

/// Writes `id` as both ends of a trace do.
pub(crate) fn hex<const NUM_BYTES: usize>(id: [u8; NUM_BYTES]) -> String {
    let mut text = String::with_capacity(2 * NUM_BYTES);
    for byte in id {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
    }
    text
}

/// Reads `VERSION-TRACE-PARENT-FLAGS`; versions after 00 may have more behind it.
fn parse(text: &str) -> Option<TraceContext> {
    let mut parts = text.trim().split('-');
    let version = number(parts.next()?, 2)?;
    let trace_id = number(parts.next()?, 32)?;
    let parent_id = u64::try_from(number(parts.next()?, 16)?).ok()?;
    let flags = number(parts.next()?, 2)?;
    let is_known = (version == 0 && parts.next().is_none()) || (1..0xff).contains(&version);
    let is_valid = is_known && trace_id != 0 && parent_id != 0;
    let parent_id = Some(parent_id);
    is_valid.then_some(TraceContext { trace_id, parent_id, is_sampled: flags & 1 == 1 })
}

/// Reads exactly `num_digits` hexadecimal digits in lower case.
fn number(digits: &str, num_digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_number = digits.len() == num_digits && digits.bytes().all(is_digit);
    is_number.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn a_trace_goes_on_where_the_header_says() {
        let context = parse(&format!("00-{TRACE}-00f067aa0ba902b7-01")).unwrap();
        assert_eq!(hex(context.trace_id.to_be_bytes()), TRACE);
        assert_eq!(hex(context.parent_id.unwrap().to_be_bytes()), "00f067aa0ba902b7");
        assert!(context.is_sampled);
        assert!(!parse(&format!("00-{TRACE}-00f067aa0ba902b7-00")).unwrap().is_sampled);
        assert!(parse(&format!("cc-{TRACE}-00f067aa0ba902b7-01-more")).is_some());
    }

    #[test]
    fn a_header_that_cannot_be_read_counts_as_none() {
        for text in [
            "".to_owned(),
            "00".to_owned(),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-00f067aa0ba902b-01"),
            format!("00-{TRACE}-+0f067aa0ba902b7-01"),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
        let fresh = [TraceContext::new(&HeaderMap::new()), TraceContext::new(&HeaderMap::new())];
        assert!(fresh[0].trace_id != fresh[1].trace_id && fresh[0].is_sampled);
    }
}
