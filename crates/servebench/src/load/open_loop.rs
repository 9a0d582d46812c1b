//! An open loop: requests, or conversations, start at given moments, whether or not earlier ones
//! have ended.

use super::conversation::LevelContext;
use crate::prompts::Prompt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A prompt and when it is due, since the start of the level.
pub(super) type Arrival = (Duration, Prompt);

/// Starts each prompt when it is due, in the order given, and waits until all have ended.
pub(super) async fn run(level: Arc<LevelContext>, arrivals: Vec<Arrival>) {
    let mut conversations = JoinSet::new();
    for (number, (arrival, prompt)) in arrivals.into_iter().enumerate() {
        let due = level.origin + arrival;
        let is_late = due <= Instant::now();
        level.alarm.wait_until(due).await;
        let level = Arc::clone(&level);
        conversations.spawn(async move { level.converse(number, prompt, Some(due)).await });
        if is_late {
            // Many are due at once: each is to be sent before the next is prepared.
            tokio::task::yield_now().await;
        }
        while conversations.try_join_next().is_some() {}
    }
    conversations.join_all().await;
}
