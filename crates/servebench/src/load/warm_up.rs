//! Requests before the first level: they load the model and show whether the server answers.

use super::prompt_stock::PromptSupply;
use super::stop::StopHandle;
use crate::client::{Connections, ExchangeClock, Message, RequestSpec, send};
use crate::error::ServebenchError;
use std::sync::atomic::AtomicU64;

/// Distance of the warm-up's seed from the run's, so that no prompt is sent twice.
const SEED_OFFSET: u64 = 10_000;

/// Sends requests one by one.
///
/// # Errors
/// When all of them fail: then the levels would, too.
pub(super) async fn run(
    spec: &RequestSpec,
    connections: &Connections,
    supply: &dyn PromptSupply,
    num_requests: usize,
    seed: u64,
    stop: &StopHandle,
) -> Result<(), ServebenchError> {
    if num_requests == 0 {
        return Ok(());
    }
    let mut first_error = None;
    let mut num_ok = 0;
    let num_pieces = AtomicU64::new(0);
    for prompt in supply.prompts(num_requests, seed.wrapping_add(SEED_OFFSET)) {
        let first_turn = prompt.turns.into_iter().next().unwrap_or_default();
        let body = spec.body(&[Message::user(first_turn)], prompt.output_len);
        let exchange = tokio::select! {
            exchange = send(connections, body, ExchangeClock::alone(), &num_pieces) => exchange,
            () = stop.requested() => return Ok(()),
        };
        match exchange.result.error {
            Some(error) => {
                first_error.get_or_insert(error);
            }
            None => num_ok += 1,
        }
    }
    match first_error {
        Some(error) if num_ok == 0 => Err(ServebenchError::Server {
            url: spec.full_url(),
            message: format!(
                "all warm-up requests failed, the first with \"{error}\"; {}",
                advice(&error)
            ),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Returns what to check, by the kind of an error.
fn advice(error: &str) -> &'static str {
    let kind = error.split(':').next().unwrap_or_default();
    match kind {
        "connect error" => "check that the server runs and that --url has its address and port",
        "HTTP 401" | "HTTP 403" => "check --api-key or OPENAI_API_KEY",
        "HTTP 404" => "check --model, and that --url ends where the API begins, mostly in /v1",
        "HTTP 400" | "HTTP 422" => "check --model, --endpoint and the lengths of prompt and output",
        "timeout" => "check the server's log, or give it longer with --timeout",
        _ => "check the server's log",
    }
}
