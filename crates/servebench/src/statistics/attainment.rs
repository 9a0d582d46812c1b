//! The share of requests that meet the SLO, and the load at which it still holds.
//!
//! Goodput at an attainment follows DistServe (Zhong et al., OSDI 2024, section 1): the highest
//! load at which that share of requests meets every SLO.

use super::as_f64;
use crate::results::{GoodputAt, LevelResult, LoadValue, RequestResult, Slo};

/// Shares of requests for which goodput is told.
const ATTAINMENTS: [f64; 2] = [0.9, 0.99];

/// Whether a request completed and met the SLO. An output of one token has no TPOT to miss.
#[must_use]
pub fn meets_slo(request: &RequestResult, slo: Slo) -> bool {
    let (true, Some(ttft)) = (request.ok, request.ttft) else { return false };
    let first_in_time = slo.ttft_ms.is_none_or(|limit| ttft * 1e3 <= limit);
    let rest_in_time = match (slo.tpot_ms, request.tpot()) {
        (Some(limit), Some(tpot)) => tpot * 1e3 <= limit,
        _ => true,
    };
    first_in_time && rest_in_time
}

/// Counts the requests that met the SLO.
pub(super) fn num_meeting(requests: &[RequestResult], slo: Slo) -> usize {
    requests.iter().filter(|request| meets_slo(request, slo)).count()
}

/// One level on the curve of attainment against load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttainmentPoint {
    /// How much load.
    pub load: LoadValue,
    /// Share of all requests, failed ones included, that met the SLO.
    pub attainment: f64,
    /// Requests per second that met it.
    pub goodput: f64,
}

/// Returns which share of requests met the SLO at each level, by load; levels without requests are
/// left out.
#[must_use]
pub fn attainment_curve(levels: &[LevelResult], slo: Slo) -> Vec<AttainmentPoint> {
    let mut points: Vec<AttainmentPoint> = levels
        .iter()
        .filter(|level| !level.requests.is_empty())
        .map(|level| {
            let num_good = as_f64(num_meeting(&level.requests, slo));
            let goodput = if level.duration > 0.0 { num_good / level.duration } else { 0.0 };
            let attainment = num_good / as_f64(level.requests.len());
            AttainmentPoint { load: level.value, attainment, goodput }
        })
        .collect();
    points.sort_by(|a, b| a.load.0.total_cmp(&b.load.0));
    points
}

/// Returns the highest load, and the good requests per second there, at which 90 % and 99 % of the
/// requests meet the SLO. Empty without an SLO or without requests.
///
/// The load lies on a straight line between the highest level that holds and the next one up; it
/// never exceeds the highest level measured. When a lower level misses what a higher one holds, the
/// higher one counts: it was measured.
#[must_use]
pub fn goodput_at(levels: &[LevelResult], slo: Slo) -> Vec<GoodputAt> {
    if slo == Slo::default() {
        return Vec::new();
    }
    let curve = attainment_curve(levels, slo);
    if curve.is_empty() {
        return Vec::new();
    }
    ATTAINMENTS.into_iter().map(|attainment| goodput_on(&curve, attainment)).collect()
}

/// Returns the highest load on the curve at which `attainment` holds.
fn goodput_on(curve: &[AttainmentPoint], attainment: f64) -> GoodputAt {
    let Some(last) = curve.iter().rposition(|point| point.attainment >= attainment) else {
        return GoodputAt { attainment, load: None, requests_per_s: None, is_lower_bound: false };
    };
    let holds = curve[last];
    let (load, requests_per_s) = match curve.get(last + 1) {
        // Nothing lies between a number and infinity.
        Some(misses) if misses.load.0.is_finite() => {
            let way = (holds.attainment - attainment) / (holds.attainment - misses.attainment);
            let between = |from: f64, to: f64| from + way * (to - from);
            (between(holds.load.0, misses.load.0), between(holds.goodput, misses.goodput))
        }
        _ => (holds.load.0, holds.goodput),
    };
    GoodputAt {
        attainment,
        // An infinite load is everything at once, which no number says.
        load: load.is_finite().then_some(load),
        requests_per_s: Some(requests_per_s),
        is_lower_bound: last + 1 == curve.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Mode, Summary};
    use crate::statistics::sample_requests::level_of;
    use crate::statistics::sample_requests::{even_request, failed_request, random_requests};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const SLO: Slo = Slo { ttft_ms: Some(500.0), tpot_ms: Some(50.0) };

    /// A level of a hundred requests in ten seconds, of which `num_good` meet the SLO.
    fn level(load: f64, num_good: usize) -> LevelResult {
        let requests = (0..100)
            .map(|i| even_request(i, 0.0, if i < num_good { 0.1 } else { 0.9 }, 0.01, 5))
            .collect();
        level_of(Mode::Rate, load, requests, 10.0, SLO)
    }

    #[test]
    fn limits_belong_to_the_slo_and_one_token_has_no_tpot() {
        let on_the_limit = even_request(0, 0.0, 0.5, 0.0, 1);
        assert!(meets_slo(&on_the_limit, SLO));
        assert!(!meets_slo(&even_request(0, 0.0, 0.501, 0.01, 5), SLO));
        assert!(!meets_slo(&even_request(0, 0.0, 0.1, 0.051, 5), SLO));
        assert!(meets_slo(&even_request(0, 0.0, 9.0, 0.9, 5), Slo::default()));
        assert!(!meets_slo(&failed_request(0, 0.0, "timeout"), Slo::default()));
    }

    #[test]
    fn goodput_lies_between_the_last_level_that_holds_and_the_next() {
        let got = goodput_at(&[level(4.0, 80), level(1.0, 100), level(2.0, 95)], SLO);
        // At 2: 95 %, at 4: 80 %; 90 % is a third of the way. 99 % is a fifth of the way from 1.
        let close = |got: Option<f64>, expected: f64| (got.unwrap() - expected).abs() < 1e-9;
        assert!(close(got[0].load, 2.0 + 2.0 / 3.0), "{got:?}");
        assert!(close(got[0].requests_per_s, 9.5 - 0.5), "{got:?}");
        assert!(close(got[1].load, 1.2) && close(got[1].requests_per_s, 9.9), "{got:?}");
        assert!(got.iter().all(|at| !at.is_lower_bound));
        assert_eq!((got[0].attainment, got[1].attainment), (0.9, 0.99));
    }

    #[test]
    fn goodput_never_exceeds_the_highest_level_measured() {
        let got = goodput_at(&[level(1.0, 100), level(2.0, 92)], SLO);
        assert_eq!((got[0].load, got[0].is_lower_bound), (Some(2.0), true));
        assert!(!got[1].is_lower_bound, "99 % is missed at 2");
        let at_once = goodput_at(&[level(1.0, 100), level(f64::INFINITY, 0)], SLO);
        assert_eq!((at_once[0].load, at_once[0].is_lower_bound), (Some(1.0), false));
    }

    #[test]
    fn no_level_that_holds_means_no_load() {
        let got = goodput_at(&[level(1.0, 50), level(2.0, 10)], SLO);
        assert!(got.iter().all(|at| at.load.is_none() && at.requests_per_s.is_none()));
        assert_eq!(goodput_at(&[level(1.0, 50)], Slo::default()), [], "no SLO to attain");
        assert_eq!(goodput_at(&[], SLO), []);
    }

    #[test]
    fn a_higher_level_that_holds_counts_although_a_lower_one_misses() {
        let got = goodput_at(&[level(1.0, 80), level(2.0, 100), level(4.0, 0)], SLO);
        assert!((got[0].load.unwrap() - 2.2).abs() < 1e-9, "{got:?}");
    }

    #[test]
    fn a_stricter_slo_never_raises_attainment_or_goodput() {
        let mut rng = StdRng::seed_from_u64(4);
        for case in 0..100 {
            let levels: Vec<LevelResult> = [1.0, 2.0, 4.0]
                .map(|load| level_of(Mode::Rate, load, random_requests(&mut rng, 40), 8.0, SLO))
                .into();
            let mut previous = f64::INFINITY;
            for limit in (0..30).rev().map(|i| f64::from(i) * 50.0) {
                let slo = Slo { ttft_ms: Some(limit), tpot_ms: None };
                let curve = attainment_curve(&levels, slo);
                let sum: f64 = curve.iter().map(|point| point.attainment + point.goodput).sum();
                assert!(sum <= previous, "case {case}, limit {limit}");
                previous = sum;
            }
        }
    }

    #[test]
    fn levels_without_requests_are_not_on_the_curve() {
        let mut empty = level(8.0, 0);
        empty.requests.clear();
        empty.summary = Summary::default();
        assert_eq!(attainment_curve(&[empty], SLO), []);
    }
}
