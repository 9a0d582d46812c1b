//! The whole terminal: drawn when something changes, and always given back.
//!
//! Raw mode makes Ctrl-C a key. A panic restores the terminal through the hook that ratatui sets;
//! everything else through [`Screen`]'s drop.

use super::collector::Collector;
use super::state::TopState;
use super::view;
use crate::error::ServebenchError;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::future::Future;
use std::io;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// How long the thread that reads keys waits before it looks whether anyone still listens.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// The terminal while it is ours.
struct Screen(DefaultTerminal);

impl Screen {
    fn take() -> Result<Self, ServebenchError> {
        ratatui::try_init().map(Self).map_err(no_terminal)
    }

    fn draw(&mut self, state: &TopState) -> Result<(), ServebenchError> {
        self.0.draw(|frame| view::draw(frame, state)).map(|_| ()).map_err(no_terminal)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn no_terminal(error: io::Error) -> ServebenchError {
    let message = format!("the terminal cannot be used ({error}); pass --inline for plain lines");
    ServebenchError::Usage { flag: "top".to_owned(), message }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Quit,
    Pause,
    Series(isize),
    /// The terminal has another size, or a key without a meaning was pressed.
    Draw,
}

impl Action {
    fn of(event: &Event) -> Self {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => Self::of_key(*key),
            Event::Key(_)
            | Event::Resize(..)
            | Event::FocusGained
            | Event::FocusLost
            | Event::Mouse(_)
            | Event::Paste(_) => Self::Draw,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other keys mean nothing")]
    fn of_key(key: KeyEvent) -> Self {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Self::Quit,
            KeyCode::Char('q') | KeyCode::Esc => Self::Quit,
            KeyCode::Char('p' | ' ') => Self::Pause,
            KeyCode::Right | KeyCode::Down => Self::Series(1),
            KeyCode::Left | KeyCode::Up => Self::Series(-1),
            _ => Self::Draw,
        }
    }
}

/// Shows the server until `end`, or until the user quits.
pub(super) async fn show(
    collector: Collector,
    end: impl Future<Output = ()>,
) -> Result<(), ServebenchError> {
    let mut state = TopState::new(collector.url());
    let mut screen = Screen::take()?;
    screen.draw(&state)?;
    let mut observations = collector.start();
    let mut actions = read_keys();
    let started = Instant::now();
    let terminated = terminated();
    tokio::pin!(end, terminated);
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            () = &mut terminated => return Ok(()),
            action = actions.recv() => match action {
                None | Some(Action::Quit) => return Ok(()),
                Some(Action::Pause) => state.is_paused = !state.is_paused,
                Some(Action::Series(by)) => state.turn_series(by),
                Some(Action::Draw) => {}
            },
            Some(observation) = observations.recv() => {
                state.update(observation, started.elapsed().as_secs_f64());
            }
        }
        screen.draw(&state)?;
    }
}

/// Waits until the system asks the program to end.
async fn terminated() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut signal) = signal(SignalKind::terminate()) {
            signal.recv().await;
            return;
        }
    }
    std::future::pending().await
}

/// Reads keys on a thread of its own, since the terminal has no other way to wait for them.
fn read_keys() -> Receiver<Action> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || while send_next_key(&sender).is_some() {});
    receiver
}

/// Waits for a key for a while; `None` when nobody listens, or the terminal is gone.
fn send_next_key(sender: &Sender<Action>) -> Option<()> {
    if event::poll(KEY_WAIT).ok()? {
        let event = event::read().ok()?;
        sender.blocking_send(Action::of(&event)).ok()?;
    }
    (!sender.is_closed()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_quit_pause_and_turn() {
        let key = |code, modifiers| Action::of(&Event::Key(KeyEvent::new(code, modifiers)));
        let plain = |code| key(code, KeyModifiers::NONE);
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(plain(code), Action::Quit);
        }
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Action::Quit);
        assert_eq!(plain(KeyCode::Char('c')), Action::Draw);
        assert_eq!(plain(KeyCode::Char('p')), Action::Pause);
        assert_eq!([plain(KeyCode::Left), plain(KeyCode::Right)], [-1, 1].map(Action::Series));
        assert_eq!(Action::of(&Event::Resize(10, 10)), Action::Draw);
    }
}
