//! Azure's LLM inference traces (Patel et al., ISCA 2024): CSV with a time and two lengths.
//!
//! The first line is [`HEADER`]. Times are `YYYY-MM-DD HH:MM:SS.fraction`, in UTC whether or not a
//! zone of zero follows. Nothing is quoted. The prompts are unknown, so no two of them share
//! anything.

use crate::trace::{LineError, LineFormat, TraceRequest, check_lengths};
use std::time::Duration;

/// The columns, in order.
pub(crate) const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// What a time looks like, for messages.
const TIME: &str = "a time such as 2023-11-16 18:15:46.6805900";

/// Reads lines of an Azure trace.
#[derive(Default)]
pub(crate) struct Lines {
    has_header: bool,
}

impl LineFormat for Lines {
    fn request(&mut self, line: &str, _number: usize) -> Result<Option<TraceRequest>, LineError> {
        if !self.has_header {
            // Spreadsheets put a byte order mark in front.
            if line.trim_start_matches('\u{feff}') != HEADER {
                let expected = format!(
                    "the header {HEADER} of an Azure trace, or an object {} of a Mooncake trace",
                    crate::mooncake::FIELDS
                );
                return Err(LineError { expected, found: excerpt(line) });
            }
            self.has_header = true;
            return Ok(None);
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [time, prompt, output] = fields[..] else {
            let expected = format!("the three columns {HEADER}");
            return Err(LineError { expected, found: excerpt(line) });
        };
        let expected = || LineError { expected: TIME.to_owned(), found: excerpt(time) };
        let arrival = parse_time(time).ok_or_else(expected)?;
        let num_prompt_tokens = parse_count("ContextTokens", prompt)?;
        let num_output_tokens = parse_count("GeneratedTokens", output)?;
        check_lengths(num_prompt_tokens, num_output_tokens)?;
        let content_ids = Box::default();
        Ok(Some(TraceRequest { arrival, num_prompt_tokens, num_output_tokens, content_ids }))
    }
}

/// Returns the start of a text that may be anything, for messages.
fn excerpt(text: &str) -> String {
    let start: String = text.chars().take(60).collect();
    format!("`{}`", start.escape_debug())
}

fn parse_count(column: &str, text: &str) -> Result<u32, LineError> {
    text.parse().map_err(|_| LineError {
        expected: format!("a whole number of tokens in {column}"),
        found: excerpt(text),
    })
}

/// Returns the time since the start of the year 0.
fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim_end_matches("+00:00").trim_end_matches('Z');
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u32>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut time = time.splitn(3, ':').map(|part| part.parse::<u32>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let in_range = year <= 9999
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    let is_number = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !in_range || !is_number {
        return None;
    }
    let days = days_before(year, month) + u64::from(day - 1);
    let seconds = days * 86_400 + u64::from(hour * 3600 + minute * 60 + second);
    let nanoseconds = format!("{fraction:0<9}")[..9].parse().ok()?;
    Some(Duration::new(seconds, nanoseconds))
}

/// Returns the days from the start of the year 0 to that of the month, Gregorian.
fn days_before(year: u32, month: u32) -> u64 {
    const DAYS_BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    // Leap days up to the end of February belong to the year whose January and February are over.
    let leap_year = u64::from(if month > 2 { year + 1 } else { year });
    let num_leap_days = leap_year.div_ceil(4) - leap_year.div_ceil(100) + leap_year.div_ceil(400);
    u64::from(year) * 365 + num_leap_days + DAYS_BEFORE_MONTH[month as usize - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Option<TraceRequest>, LineError> {
        let mut lines = Lines::default();
        assert_eq!(lines.request(HEADER, 1), Ok(None));
        lines.request(line, 2)
    }

    fn found(line: &str) -> String {
        let error = read(line).unwrap_err();
        format!("{} / {}", error.expected, error.found)
    }

    fn seconds_between(from: &str, to: &str) -> f64 {
        (parse_time(to).unwrap() - parse_time(from).unwrap()).as_secs_f64()
    }

    #[test]
    fn a_line_is_a_request() {
        let request = read("2023-11-16 18:15:46.6805900,374,44").unwrap().unwrap();
        assert_eq!((request.num_prompt_tokens, request.num_output_tokens), (374, 44));
        assert!(request.content_ids.is_empty());
    }

    #[test]
    fn times_count_through_midnights_leap_days_and_new_years() {
        assert_eq!(seconds_between("2023-11-16 23:59:59.5", "2023-11-17 00:00:01"), 1.5);
        assert_eq!(seconds_between("2024-02-28 00:00:00", "2024-03-01 00:00:00"), 2.0 * 86_400.0);
        assert_eq!(seconds_between("2023-02-28 00:00:00", "2023-03-01 00:00:00"), 86_400.0);
        assert_eq!(seconds_between("1900-02-28T00:00:00Z", "1900-03-01T00:00:00Z"), 86_400.0);
        let in_zone = "2024-05-10 00:00:00.009930+00:00";
        assert_eq!(seconds_between("2024-05-10 00:00:00", in_zone), 0.009_93);
        assert_eq!(seconds_between("2023-12-31 00:00:00", "2024-01-01 00:00:00"), 86_400.0);
        assert_eq!(seconds_between("2024-12-31 00:00:00", "2025-01-01 00:00:00"), 86_400.0);
    }

    #[test]
    fn damaged_lines_say_what_was_expected() {
        assert!(found("2023-11-16 18:15:46,374").contains("three columns"));
        assert!(found("yesterday,374,44").contains("a time such as"));
        assert!(found("2023-13-16 18:15:46,374,44").contains("a time such as"));
        assert!(found("2023-11-16 18:15:46,many,44").contains("ContextTokens / `many`"));
        assert!(found("2023-11-16 18:15:46,374,4.5").contains("GeneratedTokens / `4.5`"));
        assert!(found("2023-11-16 18:15:46,0,44").contains("prompt tokens between 1"));
    }

    #[test]
    fn a_file_without_the_header_is_told_both_formats() {
        let error = Lines::default().request("time,in,out", 1).unwrap_err();
        assert!(error.expected.contains(HEADER) && error.expected.contains("hash_ids"));
        assert_eq!(error.found, "`time,in,out`");
    }
}
