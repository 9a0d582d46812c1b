//! Points in time as RFC 3339 writes them, in UTC and in whole seconds.
//!
//! The date is counted in years of 365.2425 days that begin in March, so that a leap day is the last
//! of its year (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).

const SECONDS_PER_DAY: u64 = 86_400;
/// Days of 400 years, after which the calendar repeats.
const DAYS_PER_ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: u64 = 719_468;

/// Writes a time that is given in seconds since 1970, such as `2001-09-09T01:46:40Z`.
pub(crate) fn rfc3339(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / SECONDS_PER_DAY, unix_seconds % SECONDS_PER_DAY);
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let leap_days = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_since_1970_become_dates() {
        let check = |seconds: u64, expected: &str| assert_eq!(rfc3339(seconds), expected);
        check(0, "1970-01-01T00:00:00Z");
        check(951_782_399, "2000-02-28T23:59:59Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_000_000_000, "2001-09-09T01:46:40Z");
        check(1_078_012_800, "2004-02-29T00:00:00Z");
        check(1_767_225_599, "2025-12-31T23:59:59Z");
        check(1_767_225_600, "2026-01-01T00:00:00Z");
        check(4_107_542_399, "2100-02-28T23:59:59Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
    }
}
