//! `servebench top`: what a server does, live.
//!
//! A collector asks the server in turns and sends what it found; the state turns two scrapes into
//! rates; the view draws the state and nothing else. What the server does not tell is shown as a
//! dash: a zero would look like a measurement. A server that goes away is asked again until it is
//! back.

mod collector;
mod kv_blocks;
mod lines;
mod screen;
mod state;
mod view;

use crate::error::ServebenchError;
use collector::Collector;
use std::time::Duration;

/// How the figures are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Display {
    /// On the whole terminal.
    Screen,
    /// A line for each refresh.
    Lines,
}

/// What is watched, and how.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// Base URL of the server.
    pub url: String,
    /// The key that it wants.
    pub api_key: Option<String>,
    /// Time between two looks.
    pub refresh: Duration,
    /// When to stop; `None` for when the user does.
    pub duration: Option<Duration>,
    /// How the figures are shown.
    pub display: Display,
}

/// Watches a server until the user or the duration ends it.
///
/// # Errors
/// When the terminal cannot be used.
pub async fn watch(options: TopOptions) -> Result<(), ServebenchError> {
    let collector = Collector::new(&options);
    let end = async {
        match options.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    match options.display {
        Display::Screen => screen::show(collector, end).await,
        Display::Lines => {
            lines::print(collector, end).await;
            Ok(())
        }
    }
}
