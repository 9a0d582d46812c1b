//! One conversation, or a single request, which is a conversation of one turn.
//!
//! The next turn carries what the server itself answered, and follows when the user has thought.
//! A turn that fails ends the conversation.

use super::alarm::Alarm;
use super::progress::Counters;
use crate::client::{Connections, Exchange, ExchangeClock, Message, RequestSpec, send};
use crate::prompts::Prompt;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Whether requests say which conversation they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turns {
    /// Each request stands alone.
    Single,
    /// Conversations, with pauses of this length before each turn after the first.
    Many {
        /// The pause.
        think_time: Duration,
    },
}

/// Whether texts are needed after the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptText {
    /// For a tokenizer.
    Kept,
    /// Not at all.
    Dropped,
}

/// What the requests of a level share.
#[derive(Debug)]
pub(super) struct LevelContext {
    pub(super) spec: RequestSpec,
    pub(super) connections: Connections,
    pub(super) alarm: Alarm,
    /// Start of the level.
    pub(super) origin: Instant,
    /// After this nothing is sent any more.
    pub(super) deadline: Option<Instant>,
    pub(super) turns: Turns,
    pub(super) prompt_text: PromptText,
    /// One for each request that may be in flight, where that is limited.
    pub(super) permits: Option<Semaphore>,
    pub(super) counters: Counters,
    pub(super) finished: Mutex<Vec<FinishedRequest>>,
}

/// A request that has ended.
#[derive(Debug)]
pub(super) struct FinishedRequest {
    pub(super) exchange: Exchange,
    /// What was sent, where it is kept.
    pub(super) prompt_text: Option<String>,
}

impl LevelContext {
    /// Tells whether the level's time is over.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Has one conversation. `due` is `None` where it is due whenever it starts.
    pub(super) async fn converse(&self, number: usize, prompt: Prompt, due: Option<Instant>) {
        let mut due = due;
        let mut messages = Vec::with_capacity(2 * prompt.turns.len());
        let last_turn = prompt.turns.len().saturating_sub(1);
        for (turn, text) in prompt.turns.into_iter().enumerate() {
            messages.push(Message::user(text));
            let (exchange, is_ok) = self.request(&messages, prompt.output_len, due).await;
            let ended = exchange.ended;
            if turn < last_turn {
                messages.push(Message::assistant(exchange.answer.clone()));
            }
            self.finish(exchange, &messages, number, turn);
            if !is_ok || turn == last_turn {
                return;
            }
            if let Turns::Many { think_time } = self.turns {
                let next = ended + think_time;
                if self.deadline.is_some_and(|deadline| next >= deadline) {
                    return;
                }
                self.alarm.wait_until(next).await;
                due = Some(next);
            }
        }
    }

    async fn request(
        &self,
        messages: &[Message],
        output_len: Option<u32>,
        due: Option<Instant>,
    ) -> (Exchange, bool) {
        self.counters.num_due.fetch_add(1, Ordering::Release);
        let body = self.spec.body(messages, output_len);
        let _permit = match &self.permits {
            Some(permits) => permits.acquire().await.ok(),
            None => None,
        };
        let clock = ExchangeClock { origin: self.origin, due };
        let exchange = send(&self.connections, body, clock, &self.counters.num_pieces).await;
        let is_ok = exchange.result.ok;
        (exchange, is_ok)
    }

    /// Keeps a request that has ended.
    fn finish(&self, mut exchange: Exchange, messages: &[Message], number: usize, turn: usize) {
        exchange.result.index = number;
        if self.turns != Turns::Single {
            exchange.result.session = Some(number);
            exchange.result.turn = Some(turn);
        }
        if !exchange.result.ok {
            self.counters.num_failed.fetch_add(1, Ordering::Relaxed);
        }
        let prompt_text = (self.prompt_text == PromptText::Kept).then(|| {
            // What was sent: everything up to the last word of the user.
            let sent = messages.iter().take(2 * turn + 1);
            sent.map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n")
        });
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.push(FinishedRequest { exchange, prompt_text });
        self.counters.num_ended.fetch_add(1, Ordering::Release);
    }
}
