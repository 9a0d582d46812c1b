//! What a server's own metrics say about a level.

use std::collections::BTreeMap;

/// The samples of one scrape: name (labels summed) to value.
pub type Scrape = BTreeMap<String, f64>;

/// Returns where the metrics are: `option` is a URL, or `auto` for `/metrics` beside the API.
#[must_use]
pub fn metrics_url(_base_url: &str, _option: Option<&str>) -> Option<String> {
    None
}

/// Reads a server's metrics; `None` when it does not tell them.
pub async fn scrape(_url: &str) -> Option<Scrape> {
    None
}

/// Returns the standard figures: gauges at the end, counters as the difference.
#[must_use]
pub fn standard_metrics(_start: Option<&Scrape>, _end: &Scrape) -> BTreeMap<String, f64> {
    BTreeMap::new()
}
