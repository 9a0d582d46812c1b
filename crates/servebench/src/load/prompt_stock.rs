//! Prompts that wait to be sent, so that making one never delays a request.
//!
//! Where their number is known they are all made before the level starts. A closed loop that runs
//! for a time has no such number: it starts with a stock, which a thread keeps full.

use crate::prompts::{Prompt, PromptSource};
use std::io;
use std::sync::Arc;
use std::thread;
use tokio::sync::{Mutex, mpsc};

/// Smallest stock of a level that runs for a time.
const MIN_STOCK: usize = 32;

/// Makes prompts.
pub trait PromptSupply: Send + Sync {
    /// Returns `num_prompts` prompts, or all there are when that is fewer; equal seeds give equal
    /// prompts.
    fn prompts(&self, num_prompts: usize, seed: u64) -> Vec<Prompt>;

    /// Returns how many prompts there are, where that is not up to the caller: in a trace.
    fn num_recorded(&self) -> Option<usize> {
        None
    }
}

impl PromptSupply for PromptSource {
    fn prompts(&self, num_prompts: usize, seed: u64) -> Vec<Prompt> {
        Self::prompts(self, num_prompts, seed)
    }

    fn num_recorded(&self) -> Option<usize> {
        Self::num_recorded(self)
    }
}

/// Prompts that wait to be sent.
#[derive(Debug)]
pub(super) struct PromptStock {
    numbered: Mutex<Numbered>,
}

#[derive(Debug)]
struct Numbered {
    prompts: mpsc::Receiver<Prompt>,
    next: usize,
}

impl PromptStock {
    /// Returns a stock of these prompts.
    pub(super) fn of(prompts: Vec<Prompt>) -> Self {
        let (sender, receiver) = mpsc::channel(prompts.len().max(1));
        fill(&sender, prompts);
        Self::receiving(receiver)
    }

    /// Returns a stock of `num_prompts` that a thread keeps full, with enough for the first requests
    /// of so many users.
    pub(super) fn refilled(
        supply: Arc<dyn PromptSupply>,
        seed: u64,
        num_users: usize,
        num_prompts: usize,
    ) -> io::Result<Self> {
        let size = (2 * num_users).max(MIN_STOCK).min(num_prompts);
        let (sender, receiver) = mpsc::channel(size);
        // Each batch has a seed of its own, far from those of other levels and repeats.
        let batch = move |number: u64| {
            supply.prompts(size, seed.wrapping_mul(100_003).wrapping_add(number))
        };
        let first = batch(0);
        let num_further = num_prompts - first.len().min(size);
        fill(&sender, first);
        thread::Builder::new().name("prompts".to_owned()).spawn(move || {
            for prompt in (1..).flat_map(batch).take(num_further) {
                if sender.blocking_send(prompt).is_err() {
                    // The level has ended.
                    return;
                }
            }
        })?;
        Ok(Self::receiving(receiver))
    }

    fn receiving(prompts: mpsc::Receiver<Prompt>) -> Self {
        Self { numbered: Mutex::new(Numbered { prompts, next: 0 }) }
    }

    /// Returns the next prompt and its number; `None` when all are sent.
    pub(super) async fn next(&self) -> Option<(usize, Prompt)> {
        let mut numbered = self.numbered.lock().await;
        let prompt = numbered.prompts.recv().await?;
        numbered.next += 1;
        Some((numbered.next - 1, prompt))
    }
}

fn fill(sender: &mpsc::Sender<Prompt>, prompts: Vec<Prompt>) {
    for prompt in prompts {
        if sender.try_send(prompt).is_err() {
            // More than asked for.
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug, Default)]
    struct Numbers {
        num_made: AtomicUsize,
    }

    impl PromptSupply for Numbers {
        fn prompts(&self, num_prompts: usize, seed: u64) -> Vec<Prompt> {
            self.num_made.fetch_add(num_prompts, Ordering::SeqCst);
            let prompt = |i| Prompt {
                turns: vec![format!("{seed} {i}")],
                source: String::new(),
                output_len: None,
                arrival: None,
            };
            (0..num_prompts).map(prompt).collect()
        }
    }

    #[tokio::test]
    async fn a_refilled_stock_starts_full_never_repeats_and_ends() {
        let supply = Arc::new(Numbers::default());
        let stock = PromptStock::refilled(Arc::clone(&supply) as _, 7, 100, 1000).unwrap();
        assert!(supply.num_made.load(Ordering::SeqCst) >= 200, "the first of 100 users must wait");
        let mut seen = HashSet::new();
        for expected in 0..1000 {
            let (number, prompt) = stock.next().await.unwrap();
            assert_eq!(number, expected);
            assert!(seen.insert(prompt.turns[0].clone()), "{prompt:?} came twice");
        }
        assert!(stock.next().await.is_none(), "more than were asked for");
    }

    #[tokio::test]
    async fn a_stock_of_known_size_ends() {
        let stock = PromptStock::of(Numbers::default().prompts(2, 0));
        assert_eq!(stock.next().await.unwrap().0, 0);
        assert_eq!(stock.next().await.unwrap().1.turns[0], "0 1");
        assert!(stock.next().await.is_none());
        assert!(PromptStock::of(Vec::new()).next().await.is_none());
    }
}
