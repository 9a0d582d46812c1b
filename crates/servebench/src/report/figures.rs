//! How figures and other people's words are written.

use super::caption;
use super::number::{UNKNOWN, short};
use crate::results::{Mode, Slo};

/// Stands for a figure that was not measured.
pub(super) const MISSING: &str = UNKNOWN;

/// Writes a number with about three digits that matter.
pub(crate) fn number(value: f64) -> String {
    short(value)
}

/// Writes a number, or a dash.
pub(super) fn number_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| MISSING.to_owned(), number)
}

/// Writes seconds as milliseconds.
pub(crate) fn milliseconds(seconds: f64) -> String {
    number(seconds * 1e3)
}

/// Writes seconds as milliseconds, or a dash.
pub(super) fn milliseconds_or_dash(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| MISSING.to_owned(), milliseconds)
}

/// Writes a share in percent; only all is 100 %.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", super::number::percent(share))
}

/// Writes a share in percent, or a dash.
pub(super) fn percent_or_dash(share: Option<f64>) -> String {
    share.map_or_else(|| MISSING.to_owned(), percent)
}

/// Writes a load in words, such as `8 users at once` or `2.5 requests/s`.
pub(crate) fn load_count(mode: Mode, load: f64) -> String {
    // A load that somebody chose is short; one between two levels has more digits than it is known
    // to.
    let hundredths = (load * 100.0).round() / 100.0;
    let is_chosen = (load - hundredths).abs() < 1e-9;
    let count = if is_chosen { hundredths.to_string() } else { number(load) };
    format!("{count} {}", caption::load_unit(mode, load))
}

/// Writes an SLO in words.
pub(crate) fn slo_text(slo: Slo) -> String {
    let ttft = slo.ttft_ms.map(|limit| format!("TTFT ≤ {limit} ms"));
    let tpot = slo.tpot_ms.map(|limit| format!("TPOT ≤ {limit} ms"));
    let limits: Vec<String> = [ttft, tpot].into_iter().flatten().collect();
    if limits.is_empty() { "no SLO".to_owned() } else { limits.join(" and ") }
}

/// Returns somebody else's words without anything that steers a terminal or ends a line.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// Whether a character moves the cursor, ends a line, or turns the direction of writing.
fn steers(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns the beginning of a text, at most `max_chars` long, with a mark where it was cut.
pub(super) fn shortened(text: &str, max_chars: usize) -> String {
    let text = plain(text);
    if text.chars().count() <= max_chars {
        return text;
    }
    let kept: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Draws a share of `width` characters, in eighths of one.
pub(super) fn bar(share: f64, width: u8) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if !share.is_finite() {
        return String::new();
    }
    let eighths = (share.clamp(0.0, 1.0) * f64::from(width) * 8.0).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2040")]
    let eighths = eighths as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_0_and_what_is_unknown_a_dash() {
        assert_eq!((number(0.0), number(12.34)), ("0".to_owned(), "12.3".to_owned()));
        assert_eq!(milliseconds_or_dash(None), "–");
        assert_eq!(percent_or_dash(Some(0.9999)), "99.9 %");
    }

    #[test]
    fn bars_end_within_an_eighth() {
        assert_eq!(bar(1.0, 3), "███");
        assert_eq!(bar(0.5, 3), "█▌");
        assert_eq!(bar(0.0, 3), "");
        assert_eq!(bar(2.0, 3), "███");
        assert_eq!(bar(f64::NAN, 3), "");
    }

    #[test]
    fn other_peoples_words_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{202e}"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
        assert_eq!(plain("Zürich 東京"), "Zürich 東京");
        assert_eq!(shortened("a long label", 7), "a long…");
        assert_eq!(shortened("short", 7), "short");
    }

    #[test]
    fn loads_and_slos_read_as_sentences() {
        assert_eq!(load_count(Mode::Concurrency, 1.0), "1 user at once");
        assert_eq!(load_count(Mode::Concurrency, 8.3333), "8.33 users at once");
        assert_eq!(load_count(Mode::Concurrency, 1.599_999_999_999_999_9), "1.6 users at once");
        assert_eq!(load_count(Mode::Rate, 0.5), "0.5 requests/s");
        assert_eq!(
            slo_text(Slo { ttft_ms: Some(500.0), tpot_ms: Some(12.5) }),
            "TTFT ≤ 500 ms and TPOT ≤ 12.5 ms"
        );
        assert_eq!(slo_text(Slo::default()), "no SLO");
    }
}
